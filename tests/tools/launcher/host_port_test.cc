#include "tools/launcher/host_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "common/link/unique_fd.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

TEST(HostPortTest, Parse_Valid_IsWrittenTheSame) {
  for (const char* const text : {"127.0.0.1:4700", "node0:1", "[::1]:65535"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), text);
  }
  EXPECT_EQ(ParseHostPort("[::1]:9")->host, "::1");
}

TEST(HostPortTest, Parse_Invalid_IsShown) {
  for (const char* const text :
       {"", "4700", "a:b", "a:", ":1", "a:0", "a:65536", "::1:4", "[]:4"}) {
    const auto parsed = ParseHostPort(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(HostPortTest, Reach_Listener_IsOk_UntilItIsClosed) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const HostPort there = {"127.0.0.1", ntohs(address.sin_port)};
  EXPECT_THAT(std::string(TryToReach(there).message()), HasSubstr("Connection refused"));
  ASSERT_EQ(listen(listener.get(), 1), 0);
  EXPECT_TRUE(TryToReach(there).ok());
  listener = UniqueFd();
  EXPECT_EQ(TryToReach(there).code(), absl::StatusCode::kUnavailable);
}

TEST(HostPortTest, FreePort_CanBeBound) {
  const auto port = FreePort();
  ASSERT_TRUE(port.ok()) << port.status();
  const UniqueFd descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(*port));
  EXPECT_EQ(bind(descriptor.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

}  // namespace
}  // namespace optshard
