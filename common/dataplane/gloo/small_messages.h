// Short messages between ranks, sent and received by the threads that wait for them.
//
// Gloo moves every message by a thread of its own and announces it first. For a message of a few
// kilobytes that handshake and the switches between threads take much longer than the bytes. Here a
// message is copied to a queue, the queue goes out with the next wait (all messages to a peer in
// one write), and whoever waits reads the sockets itself.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_SMALL_MESSAGES_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_SMALL_MESSAGES_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/dataplane/gloo/transfer.h"
#include "common/ids.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Thread-safe. The step's thread waits; the thread that cuts the connections may wait too, and then
// cuts them, since one wait may take a wake-up that was meant for the other. The memory of
// messages is touched under the lock only, and not at all after Cut or Finish.
class SmallMessages : public std::enable_shared_from_this<SmallMessages> {
 public:
  // The longest message.
  static constexpr size_t kMaxBytes = size_t{64} << 10;

  // `connections` are connected stream sockets by rank; at this rank's own place there is none.
  // RESOURCE_EXHAUSTED where the process has no descriptors left.
  static absl::StatusOr<std::shared_ptr<SmallMessages>> Create(std::vector<UniqueFd> connections);

  ~SmallMessages();
  SmallMessages(const SmallMessages&) = delete;
  SmallMessages& operator=(const SmallMessages&) = delete;

  // Messages with the same slot between two ranks match in order; `data` is free when Send returns.
  // UNAVAILABLE where the connection has failed.
  absl::StatusOr<std::unique_ptr<Transfer>> Send(Rank peer, uint64_t slot, const void* data,
                                                 size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<Transfer>> Receive(Rank peer, uint64_t slot, void* data,
                                                    size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes what is queued, as far as the sockets take it at once. Every wait begins with it.
  void Flush() ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads what the peer sent, for at most `patience`, until no receive of this slot is under way
  // any more: its message has come, or the connection has ended. Returns whether that is so.
  bool ReadUntilReceived(Rank peer, uint64_t slot, absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Both end all connections. Finish lets what was written arrive; after Cut, transfers that are
  // not done are broken.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What a transfer waits for. Guarded by the mutex of the messages.
  struct Pending {
    Rank peer = -1;
    // A message to the peer is done when this many bytes have been written to it.
    uint64_t sent_when = 0;
    // A message from the peer.
    bool receives = false;
    uint64_t slot = 0;
    char* data = nullptr;
    size_t bytes = 0;
    bool received = false;

    bool aborted = false;
    bool waited_for = false;
  };
  class SmallTransfer;

  struct EarlyMessage {
    uint64_t slot = 0;
    std::vector<char> data;
  };
  // The connection to one peer.
  struct Line {
    UniqueFd socket;
    std::string why_broken;  // "" while it works
    std::string output;      // queued; its beginning may have been written
    size_t output_begin = 0;
    uint64_t queued = 0, written = 0;  // bytes in all
    std::vector<char> input;           // read, not yet a whole message
    size_t input_end = 0;
    std::deque<std::shared_ptr<Pending>> receives;  // in the order in which they were started
    std::deque<EarlyMessage> early;                 // nobody has asked for these yet
  };
  using Descriptors = absl::InlinedVector<pollfd, 8>;

  SmallMessages(std::vector<UniqueFd> connections, UniqueFd wake);

  Transfer::Outcome Wait(Pending& pending, absl::Duration timeout, std::string* why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDone(const Pending& pending) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(Line& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(Line& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMessages(Line& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(Line& line, uint64_t slot, const char* data, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Break(Line& line, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Descriptors Watched() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAll(int how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd wake_;  // an eventfd: ends the poll of the thread that waits

  absl::Mutex mutex_;
  std::vector<Line> lines_ ABSL_GUARDED_BY(mutex_);  // by rank
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;          // threads that poll
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_SMALL_MESSAGES_H_
