#include "common/rpc/network_choice.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

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

TEST(NetworkChoiceTest, ListenTowards_IsAnyPortOfTheAddress) {
  EXPECT_EQ(ListenTowards("127.0.0.1"), "127.0.0.1:0");
  EXPECT_EQ(ListenTowards("2001:db8::1"), "[2001:db8::1]:0");
}

TEST(NetworkChoiceTest, ReachableAddress_ListeningAtOneAddress_IsThat) {
  const std::vector<std::string> host = {"10.0.0.9"};
  EXPECT_EQ(ReachableAddress("127.0.0.1:0", 12, "10.0.0.1", host), "127.0.0.1:12");
  EXPECT_EQ(ReachableAddress("10.0.0.2:0", 12, "10.0.0.1", host), "10.0.0.2:12");
  EXPECT_EQ(ReachableAddress("[2001:db8::5]:0", 12, "10.0.0.1", host), "[2001:db8::5]:12");
  EXPECT_EQ(ReachableAddress("node7:4800", 4800, "127.0.0.1", host), "node7:4800");
}

TEST(NetworkChoiceTest, ReachableAddress_ListeningEverywhere_IsTheOneTowardsThePeers) {
  const std::vector<std::string> host = {"10.0.0.9"};
  EXPECT_EQ(ReachableAddress("0.0.0.0:0", 12, "10.0.0.1", host), "10.0.0.1:12");
  EXPECT_EQ(ReachableAddress("[::]:0", 12, "2001:db8::1", host), "[2001:db8::1]:12");
}

TEST(NetworkChoiceTest, ReachableAddress_ListeningEverywhereWithAPeerOnThisHost_IsNotTheLoopback) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "[0::0]:0"}) {
    for (const char* loopback : {"127.0.0.1", "127.0.1.1", "::1"}) {
      EXPECT_EQ(ReachableAddress(listen, 12, loopback, {"10.0.0.9", "10.1.0.9"}), "10.0.0.9:12");
      EXPECT_EQ(ReachableAddress(listen, 12, loopback, {"2001:db8::9"}), "[2001:db8::9]:12");
    }
  }
  EXPECT_EQ(ReachableAddress("0.0.0.0:0", 12, "127.0.0.1", {}), "127.0.0.1:12");
}

// Gives the child's own network namespace an address that is not the loopback's: on the interface
// "lo", which every namespace has. Whether that could be done.
bool EnterNetworkWith(const char* address) {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq up = {};
  std::strcpy(up.ifr_name, "lo");
  up.ifr_flags = IFF_UP;
  ifreq other = {};
  std::strcpy(other.ifr_name, "lo:1");
  auto* const in = reinterpret_cast<sockaddr_in*>(&other.ifr_addr);
  in->sin_family = AF_INET;
  const bool done = inet_pton(AF_INET, address, &in->sin_addr) == 1 &&
                    ioctl(descriptor, SIOCSIFFLAGS, &up) == 0 &&
                    ioctl(descriptor, SIOCSIFADDR, &other) == 0;
  close(descriptor);
  return done;
}

// A socket that listens on all addresses, and its port.
std::pair<int, int> ListenEverywhere() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  auto* const name = reinterpret_cast<sockaddr*>(&any);
  if (bind(listener, name, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, name, &length) != 0) {
    return {-1, 0};
  }
  return {listener, ntohs(any.sin_port)};
}

TEST(NetworkChoiceTest, ReachableAddress_OnAHostWithAnotherAddress_IsOneThatAnswers) {
  constexpr int kNoNamespace = 77;
  testing::Child child([] {
    if (HostAddresses().empty() && !EnterNetworkWith("10.9.8.7")) return kNoNamespace;
    const auto [listener, port] = ListenEverywhere();
    const std::string reachable =
        ReachableAddress("0.0.0.0:0", port, *AddressTowards("127.0.0.1:1"), HostAddresses());
    if (absl::StartsWith(reachable, "127.")) return 1;
    sockaddr_in peer = {};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(port);
    if (inet_pton(AF_INET, reachable.substr(0, reachable.find(':')).c_str(), &peer.sin_addr) != 1) {
      return 2;
    }
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(client, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0 ? 0 : 3;
  });
  const int code = child.Wait();
  if (code == kNoNamespace) GTEST_SKIP() << "no network but the loopback, and no namespace";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace optshard
