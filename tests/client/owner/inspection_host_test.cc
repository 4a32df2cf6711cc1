#include "client/owner/inspection_host.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(InspectionHost_SameAddress_IsSharedAlsoAtPort0, UntilTheLastHasGone) {
  const std::shared_ptr<InspectionHost> first = InspectionHost::Get("127.0.0.1:0").value();
  const std::shared_ptr<InspectionHost> second = InspectionHost::Get("127.0.0.1:0").value();
  EXPECT_EQ(first, second);
  const std::shared_ptr<InspectionHost> other = InspectionHost::Get("localhost:0").value();
  EXPECT_NE(first->port(), other->port());
}

TEST(InspectionHost_FixedPort_IsFreeAgain, OnceTheLastHasGone) {
  // Another process may take a port that was just given up; hardly so many of them.
  constexpr int kPorts = 20;
  bool free_again = false;
  for (int port = 0; port < kPorts && !free_again; ++port) {
    std::shared_ptr<InspectionHost> host = InspectionHost::Get("127.0.0.1:0").value();
    const std::string fixed = absl::StrCat("127.0.0.1:", host->port());
    EXPECT_EQ(InspectionHost::Get(fixed).status().code(), absl::StatusCode::kUnavailable);
    host.reset();
    free_again = InspectionHost::Get(fixed).ok();
  }
  EXPECT_TRUE(free_again);
}

}  // namespace
}  // namespace optshard
