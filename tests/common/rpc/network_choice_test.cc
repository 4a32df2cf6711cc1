#include "common/rpc/network_choice.h"

#include <gtest/gtest.h>

namespace optshard {
namespace {

TEST(NetworkChoiceTest, AddressTowards_Loopback_IsTheLoopback) {
  EXPECT_EQ(*AddressTowards("127.0.0.1:29500"), "127.0.0.1");
  EXPECT_EQ(AddressTowards("localhost:29500").status(), absl::OkStatus());
}

TEST(NetworkChoiceTest, AddressTowards_NoAddress_IsInvalid) {
  for (const char* bad : {"", "host", ":1", "host:"}) {
    EXPECT_EQ(AddressTowards(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(NetworkChoiceTest, AddressTowards_UnknownHost_IsUnavailableNamingIt) {
  const auto address = AddressTowards("no-such-host.invalid:1");
  EXPECT_EQ(address.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(address.status().message().find("no-such-host.invalid:1"), absl::string_view::npos);
}

TEST(NetworkChoiceTest, ReachableAddress_ListeningEverywhere_IsTheOwnAddress) {
  EXPECT_EQ(ReachableAddress("127.0.0.1:0", 12, "10.0.0.1"), "127.0.0.1:12");
  EXPECT_EQ(ReachableAddress("0.0.0.0:0", 12, "10.0.0.1"), "10.0.0.1:12");
  EXPECT_EQ(ReachableAddress("[::]:0", 12, "fe80::1"), "[fe80::1]:12");
}

}  // namespace
}  // namespace optshard
