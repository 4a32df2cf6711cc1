#include "common/attach/write_counts.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/link/poll_until.h"

namespace optshard {
namespace {

struct Question {
  uint64_t number;
};
struct Answer {
  uint64_t number;
  uint64_t writes;
  uint64_t are_expected;
};

template <typename Message>
bool Send(int fd, const Message& message) {
  ssize_t sent = 0;
  do {
    sent = send(fd, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message);
}

// The size of the message that was received: 0 at the other end's end, -1 where there is none.
template <typename Message>
ssize_t ReceiveNow(int fd, Message* message) {
  ssize_t received = 0;
  do {
    received = recv(fd, message, sizeof *message, MSG_DONTWAIT | MSG_TRUNC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return 0;
  return received;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WriteCountAsker>> WriteCountAsker::Create() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno,
                               "cannot make a pair of sockets; where too many files are open, "
                               "raise the limit (ulimit -n)");
  }
  return std::unique_ptr<WriteCountAsker>(
      new WriteCountAsker(UniqueFd(ends[0]), UniqueFd(ends[1])));
}

absl::StatusOr<WriteCount> WriteCountAsker::Ask(absl::Duration timeout) {
  const absl::Time deadline = Clock::Monotonic().Now() + timeout;
  absl::MutexLock lock(&mutex_);
  const bool asked = Send(server_.get(), Question{++asked_});
  while (asked && PollUntil(server_.get(), POLLIN, deadline) &&
         Clock::Monotonic().Now() < deadline) {
    Answer answer;
    const ssize_t received = ReceiveNow(server_.get(), &answer);
    if (received == 0) break;
    // Others were waited for in vain.
    if (received == static_cast<ssize_t>(sizeof answer) && answer.number == asked_) {
      return WriteCount{answer.writes, answer.are_expected != 0};
    }
  }
  if (Clock::Monotonic().Now() < deadline) {
    return absl::UnavailableError("it has gone, or takes no question");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("it does not answer within ", absl::FormatDuration(timeout)));
}

void WriteCountAsker::HangUp() { shutdown(server_.get(), SHUT_RDWR); }

bool AnswerWriteCounts(int fd, absl::FunctionRef<WriteCount()> count) {
  while (true) {
    Question question;
    const ssize_t received = ReceiveNow(fd, &question);
    if (received <= 0) return received < 0;
    if (received == static_cast<ssize_t>(sizeof question)) {
      const WriteCount now = count();
      Send(fd, Answer{question.number, now.writes, now.are_expected ? uint64_t{1} : uint64_t{0}});
    }
  }
}

}  // namespace optshard
