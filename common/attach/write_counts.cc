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

constexpr uint64_t kLastWord = 0;  // the number of no question

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

Answer AnswerOf(uint64_t number, const WriteCount& count) {
  return {number, count.writes, count.are_expected ? uint64_t{1} : uint64_t{0}};
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

// Of answers, the one to the present question, or the last word.
WriteCountAsker::Received WriteCountAsker::Receive(WriteCount* count) {
  while (true) {
    Answer answer;
    const ssize_t received = ReceiveNow(server_.get(), &answer);
    if (received == 0) return Received::kEnd;
    if (received < 0) return Received::kNothing;
    if (received != static_cast<ssize_t>(sizeof answer)) continue;
    *count = {answer.writes, answer.are_expected != 0};
    if (answer.number == kLastWord) last_ = *count;
    // Others were waited for in vain.
    if (answer.number == kLastWord || answer.number == asked_) return Received::kAnswer;
  }
}

absl::StatusOr<WriteCount> WriteCountAsker::Ask(absl::Duration timeout) {
  const absl::Time deadline = Clock::Monotonic().Now() + timeout;
  absl::MutexLock lock(&mutex_);
  if (last_.has_value()) return *last_;
  ++asked_;
  // Where it cannot be sent, there may be a last word still.
  const bool sent = Send(server_.get(), Question{asked_});
  while (true) {
    WriteCount count;
    switch (Receive(&count)) {
      case Received::kAnswer:
        return count;
      case Received::kEnd:
        return absl::UnavailableError("it has gone");
      case Received::kNothing:
        break;
    }
    if (!sent || !PollUntil(server_.get(), POLLIN, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("it does not answer within ", absl::FormatDuration(timeout)));
    }
  }
}

absl::optional<WriteCount> WriteCountAsker::HangUp() {
  shutdown(server_.get(), SHUT_RDWR);
  absl::MutexLock lock(&mutex_);
  WriteCount count;
  while (!last_.has_value() && Receive(&count) == Received::kAnswer) {
  }
  return last_;
}

bool AnswerWriteCounts(int fd, absl::FunctionRef<WriteCount()> count) {
  while (true) {
    Question question;
    const ssize_t received = ReceiveNow(fd, &question);
    if (received <= 0) return received < 0;
    if (received == static_cast<ssize_t>(sizeof question)) {
      Send(fd, AnswerOf(question.number, count()));
    }
  }
}

void SayLastWriteCount(int fd, const WriteCount& count) { Send(fd, AnswerOf(kLastWord, count)); }

}  // namespace optshard
