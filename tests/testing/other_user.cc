#include "tests/testing/other_user.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/link/local_address.h"
#include "common/link/poll_until.h"
#include "gtest/gtest.h"

namespace optshard::testing {
namespace {

// Exit codes of the child that listens.
constexpr int kNothingCame = 0;
constexpr int kMessageCame = 1;
constexpr int kNobodyCame = 2;
constexpr int kCannotListen = 3;

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(30); }

int Listen(const LocalAddress& address, int ready) {
  if (!BecomeOtherUser()) return kCannotListen;
  const auto listener = LocalListener::Listen(address);
  if (!listener.ok() || write(ready, "x", 1) != 1) return kCannotListen;
  const auto socket = (*listener)->Accept(Soon());
  if (!socket.ok()) return kNobodyCame;
  if (!PollUntil((*socket)->fd(), POLLIN, Soon())) return kNobodyCame;
  char byte;
  return recv((*socket)->fd(), &byte, 1, 0) > 0 ? kMessageCame : kNothingCame;
}

}  // namespace

bool KnowsOtherUser() {
  if (geteuid() != 0) return false;
  // Each line: the first user inside of a range, the first one outside, how many.
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0;
  uint64_t outside = 0;
  uint64_t count = 0;
  while (map >> inside >> outside >> count) {
    if (inside <= kOtherUser && kOtherUser - inside < count) return true;
  }
  return false;
}

bool BecomeOtherUser() { return setgid(kOtherUser) == 0 && setuid(kOtherUser) == 0; }

std::unique_ptr<LocalSocket> ConnectUnchecked(const LocalAddress& address) {
  const absl::StatusOr<KernelAddress> kernel = ToKernel(address);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!kernel.ok() || !fd.valid()) return nullptr;
  if (connect(fd.get(), kernel->get(), kernel->bytes) != 0) return nullptr;
  return std::make_unique<LocalSocket>(std::move(fd));
}

ForeignListener::ForeignListener(const LocalAddress& address) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  child_ = std::make_unique<Child>([&] { return Listen(address, ready[1]); });
  close(ready[1]);
  char byte;
  EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the other user cannot listen at " << address;
  close(ready[0]);
}

std::string ForeignListener::WhatCame() {
  switch (const int code = child_->Wait()) {
    case kNothingCame:
      return "";
    case kMessageCame:
      return "a message";
    case kNobodyCame:
      return "nobody who sent anything or hung up";
    default:
      return absl::StrCat("it ended with ", code);
  }
}

}  // namespace optshard::testing
