// The operations of a shared-memory plane that are under way on one rank.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_SHM_OPERATIONS_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_SHM_OPERATIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/shm/shm_peers.h"

namespace optshard {

// All ranks start the same operations in the same order. So each rank can compute from the sizes
// alone which pieces in which mailbox belong to which operation. No thread moves bytes in the
// background: whoever waits for one operation advances all of them. Bound to the step's thread,
// except Break.
class ShmOperations {
 public:
  // This rank's part in one operation.
  struct Operation {
    const char* kind = "";
    StepTag tag;

    // What this rank posts, and for whom.
    const char* send = nullptr;
    size_t send_bytes = 0;
    std::vector<Rank> readers;
    uint64_t first_send = 0, next_send = 0, end_send = 0;  // numbers of pieces

    // What this rank takes, and where to.
    struct Receive {
      Rank from = -1;
      char* to = nullptr;  // null in a reduction, which adds it to the sum
      uint64_t first = 0, next = 0, end = 0;
    };
    std::vector<Receive> receives;
    size_t receive_bytes = 0;  // from each of them

    // A reduction to this rank: the pieces of all are summed into `result`, piece by piece.
    bool sums = false;
    Reduction reduction;
    DType dtype = DType::kFloat32;
    const char* contribution = nullptr;
    char* result = nullptr;

    bool Done() const;
  };

  ShmOperations(std::unique_ptr<ShmPeers> peers, const ShmPlaneOptions& options);
  ~ShmOperations();

  ShmPeers& peers() { return *peers_; }
  const ShmPeers& peers() const { return *peers_; }

  // Puts the operation last in the order of all, and starts it. Each of the `senders` posts `bytes`
  // in it.
  void Start(const std::shared_ptr<Operation>& operation, absl::Span<const Rank> senders,
             size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until the operation is done. When it returns an error, the plane is broken and nothing
  // touches the memory of any operation any more.
  absl::Status Wait(const Operation& operation, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Close(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // OK while operations may start; then why not. Any thread.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Breaks the plane for this reason and tells the peers. The first reason stays. Any thread.
  void Break(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void MoveOn();
  void Send(Operation& operation);
  void Take(Operation& operation);
  void TakeSum(Operation& operation);
  bool HasPiece(Operation& operation, const Operation::Receive& receive);
  void Taken(Operation::Receive& receive);
  bool SlotIsFree(uint64_t number);
  std::vector<Rank> WaitedFor(const Operation& operation);
  absl::Status WhyPeerLeft(Rank peer);
  std::vector<Rank> ClosedTooEarly(const Operation& operation);
  void BreakIfAPeerLeft();
  absl::Status broken() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Rank rank_;
  const absl::Duration spin_;
  const std::unique_ptr<ShmPeers> peers_;

  std::deque<std::shared_ptr<Operation>> pending_;
  std::vector<uint64_t> next_number_;  // by rank: the first piece that belongs to no operation yet
  // By slot of this rank's mailbox: the piece that lies in it, and who has to take it.
  struct Occupant {
    uint64_t number = 0;
    std::vector<Rank> readers;
  };
  std::array<Occupant, Mailbox::kSlots> occupants_;
  // During one pass of MoveOn: what has to wait for an earlier piece, because pieces of a rank are
  // posted and taken in order.
  bool send_is_blocked_ = false;
  std::vector<bool> receive_is_blocked_;  // by rank
  std::vector<const void*> contributions_;
  // True once an error was returned: from then on the buffers of pending operations may be gone.
  bool gave_up_ = false;

  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_SHM_OPERATIONS_H_
