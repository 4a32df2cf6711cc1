#include "common/dataplane/gloo/small_messages.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/link/poll_until.h"

namespace optshard {
namespace {

// Before a message on the wire. Host byte order: the ranks of a job are machines of one kind
// (docs/assumptions.md).
struct Header {
  uint32_t magic = 0x6f707473;  // "opts"
  uint32_t bytes = 0;
  uint64_t slot = 0;
};
static_assert(sizeof(Header) == 16, "no padding");

// The socket holds at least this much; from here on it is better busy than idle.
constexpr size_t kWriteAtOnceBytes = size_t{16} << 10;

// Any message fits, and many short ones are read at once.
constexpr size_t kInputBytes = 2 * (sizeof(Header) + SmallMessages::kMaxBytes);

std::string ErrorText(const char* what) { return absl::StrCat(what, ": ", strerror(errno)); }

}  // namespace

class SmallMessages::SmallTransfer : public Transfer {
 public:
  SmallTransfer(std::shared_ptr<SmallMessages> messages, std::shared_ptr<Pending> pending)
      : messages_(std::move(messages)), pending_(std::move(pending)) {}

  Outcome Wait(absl::Duration timeout, std::string* why) override {
    return messages_->Wait(*pending_, timeout, why);
  }

  void Abort() override {
    absl::MutexLock lock(&messages_->mutex_);
    pending_->aborted = true;
    if (pending_->waited_for) messages_->Wake();
  }

 private:
  const std::shared_ptr<SmallMessages> messages_;
  const std::shared_ptr<Pending> pending_;
};

absl::StatusOr<std::shared_ptr<SmallMessages>> SmallMessages::Create(
    std::vector<UniqueFd> connections) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::ResourceExhaustedError(ErrorText("eventfd"));
  return std::shared_ptr<SmallMessages>(new SmallMessages(std::move(connections), std::move(wake)));
}

SmallMessages::SmallMessages(std::vector<UniqueFd> connections, UniqueFd wake)
    : wake_(std::move(wake)), lines_(connections.size()) {
  for (size_t rank = 0; rank < connections.size(); ++rank) {
    lines_[rank].socket = std::move(connections[rank]);
    if (lines_[rank].socket.valid()) lines_[rank].input.resize(kInputBytes);
  }
}

SmallMessages::~SmallMessages() { Cut(); }

absl::StatusOr<std::unique_ptr<Transfer>> SmallMessages::Send(Rank peer, uint64_t slot,
                                                              const void* data, size_t bytes) {
  auto pending = std::make_shared<Pending>();
  absl::MutexLock lock(&mutex_);
  Line& line = lines_[peer];
  if (!line.why_broken.empty()) return absl::UnavailableError(line.why_broken);
  Header header;
  header.bytes = static_cast<uint32_t>(bytes);
  header.slot = slot;
  line.output.append(reinterpret_cast<const char*>(&header), sizeof(header));
  line.output.append(static_cast<const char*>(data), bytes);
  line.queued += sizeof(header) + bytes;
  pending->peer = peer;
  pending->sent_when = line.queued;
  if (line.output.size() - line.output_begin >= kWriteAtOnceBytes) Write(line);
  return std::unique_ptr<Transfer>(
      std::make_unique<SmallTransfer>(shared_from_this(), std::move(pending)));
}

absl::StatusOr<std::unique_ptr<Transfer>> SmallMessages::Receive(Rank peer, uint64_t slot,
                                                                 void* data, size_t bytes) {
  auto pending = std::make_shared<Pending>();
  pending->peer = peer;
  pending->receives = true;
  pending->slot = slot;
  pending->data = static_cast<char*>(data);
  pending->bytes = bytes;
  absl::MutexLock lock(&mutex_);
  Line& line = lines_[peer];
  const auto early = std::find_if(line.early.begin(), line.early.end(), [&](const auto& message) {
    return message.slot == slot && message.data.size() == bytes;
  });
  if (early != line.early.end()) {
    if (bytes > 0) std::memcpy(data, early->data.data(), bytes);
    line.early.erase(early);
    pending->received = true;
  } else if (!line.why_broken.empty()) {
    return absl::UnavailableError(line.why_broken);
  } else {
    line.receives.push_back(pending);
  }
  return std::unique_ptr<Transfer>(
      std::make_unique<SmallTransfer>(shared_from_this(), std::move(pending)));
}

void SmallMessages::Flush() {
  absl::MutexLock lock(&mutex_);
  WriteAll();
}

bool SmallMessages::ReadUntilReceived(Rank peer, uint64_t slot, absl::Duration patience) {
  const absl::Time deadline = Clock::Monotonic().Now() + patience;
  absl::MutexLock lock(&mutex_);
  Line& line = lines_[peer];
  while (true) {
    Read(line);
    const bool received = std::none_of(line.receives.begin(), line.receives.end(),
                                       [slot](const auto& each) { return each->slot == slot; });
    if (received) return true;
    mutex_.Unlock();
    const bool is_more = PollUntil(line.socket.get(), POLLIN, deadline);
    mutex_.Lock();
    if (!is_more) return false;
  }
}

void SmallMessages::Finish() {
  absl::MutexLock lock(&mutex_);
  WriteAll();
  EndAll(SHUT_WR);
}

void SmallMessages::Cut() {
  absl::MutexLock lock(&mutex_);
  EndAll(SHUT_RDWR);
}

// Shut down, not closed: another thread may be polling the descriptors.
void SmallMessages::EndAll(int how) {
  for (Line& line : lines_) {
    if (!line.socket.valid()) continue;
    if (!ended_) shutdown(line.socket.get(), how);
    if (line.why_broken.empty()) Break(line, "the connection has been closed on this side");
  }
  ended_ = true;
}

Transfer::Outcome SmallMessages::Wait(Pending& pending, absl::Duration timeout, std::string* why) {
  const absl::Time deadline = Clock::Monotonic().Now() + timeout;
  absl::MutexLock lock(&mutex_);
  Line& line = lines_[pending.peer];
  WriteAll();
  if (!IsDone(pending)) Read(line);
  while (true) {
    if (IsDone(pending)) return Transfer::Outcome::kDone;
    if (!line.why_broken.empty()) {
      *why = line.why_broken;
      return Transfer::Outcome::kBroken;
    }
    if (std::exchange(pending.aborted, false)) return Transfer::Outcome::kAborted;
    if (Clock::Monotonic().Now() >= deadline) return Transfer::Outcome::kTimedOut;
    Descriptors watched = Watched();
    pending.waited_for = true;
    ++waiting_;
    mutex_.Unlock();
    PollUntil(absl::MakeSpan(watched), deadline);
    mutex_.Lock();
    --waiting_;
    pending.waited_for = false;
    for (size_t rank = 0; rank < lines_.size(); ++rank) {
      if ((watched[rank].revents & POLLOUT) != 0) Write(lines_[rank]);
      if ((watched[rank].revents & ~POLLOUT) != 0) Read(lines_[rank]);
    }
    if (watched.back().revents != 0) {
      uint64_t count = 0;
      // Empty where another thread has read it.
      [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &count, sizeof(count));
    }
  }
}

// A place for every rank, and last the eventfd; poll passes over descriptors below zero.
SmallMessages::Descriptors SmallMessages::Watched() const {
  Descriptors watched(lines_.size() + 1);
  for (size_t rank = 0; rank < lines_.size(); ++rank) {
    const Line& line = lines_[rank];
    watched[rank].fd = line.why_broken.empty() ? line.socket.get() : -1;
    watched[rank].events = POLLIN;
    if (line.written < line.queued) watched[rank].events |= POLLOUT;
  }
  watched.back().fd = wake_.get();
  watched.back().events = POLLIN;
  return watched;
}

bool SmallMessages::IsDone(const Pending& pending) const {
  return pending.receives ? pending.received : lines_[pending.peer].written >= pending.sent_when;
}

void SmallMessages::WriteAll() {
  for (Line& line : lines_) Write(line);
}

void SmallMessages::Write(Line& line) {
  if (!line.why_broken.empty()) return;
  while (line.written < line.queued) {
    const ssize_t written =
        send(line.socket.get(), line.output.data() + line.output_begin,
             line.output.size() - line.output_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (written < 0) {
      const std::string why = ErrorText("writing to the connection");
      // What the peer sent before may say why.
      Read(line);
      if (line.why_broken.empty()) Break(line, why);
      return;
    }
    line.output_begin += written;
    line.written += written;
  }
  line.output.clear();
  line.output_begin = 0;
}

void SmallMessages::Read(Line& line) {
  while (line.why_broken.empty() && line.socket.valid()) {
    const ssize_t got = recv(line.socket.get(), line.input.data() + line.input_end,
                             line.input.size() - line.input_end, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) return Break(line, ErrorText("reading from the connection"));
    if (got == 0) return Break(line, "the peer has closed the connection");
    const bool may_be_more = line.input_end + got == line.input.size();
    line.input_end += got;
    TakeMessages(line);
    if (!may_be_more) return;
  }
}

void SmallMessages::TakeMessages(Line& line) {
  size_t at = 0;
  while (line.input_end - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, line.input.data() + at, sizeof(header));
    if (header.magic != Header().magic || header.bytes > kMaxBytes) {
      return Break(line, "the peer sent what is not a message");
    }
    if (line.input_end - at < sizeof(header) + header.bytes) break;
    Deliver(line, header.slot, line.input.data() + at + sizeof(header), header.bytes);
    at += sizeof(header) + header.bytes;
  }
  std::memmove(line.input.data(), line.input.data() + at, line.input_end - at);
  line.input_end -= at;
}

void SmallMessages::Deliver(Line& line, uint64_t slot, const char* data, size_t bytes) {
  const auto to = std::find_if(
      line.receives.begin(), line.receives.end(),
      [&](const auto& receive) { return receive->slot == slot && receive->bytes == bytes; });
  if (to == line.receives.end()) {
    line.early.push_back({slot, std::vector<char>(data, data + bytes)});
    return;
  }
  if (bytes > 0) std::memcpy((*to)->data, data, bytes);
  (*to)->received = true;
  line.receives.erase(to);
  // Who polls for it would not see what is read already.
  if (waiting_ > 0) Wake();
}

void SmallMessages::Break(Line& line, std::string why) {
  line.why_broken = std::move(why);
  line.receives.clear();
  if (waiting_ > 0) Wake();
}

void SmallMessages::Wake() {
  const uint64_t one = 1;
  // Fails only where the count is full: then the poll ends anyway.
  [[maybe_unused]] const ssize_t bytes = write(wake_.get(), &one, sizeof(one));
}

}  // namespace optshard
