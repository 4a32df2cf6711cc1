// The collective data plane: how gradients reach owners and parameters reach replicas.
//
// Operations are asynchronous: a call starts one and returns a ticket. All ranks start the same
// operations with the same tags in the same order, also those whose members they are not: in these
// they take no part, give no memory, and their tickets are done at once. Nobody waits for them.
// Many operations may be under way at the same time, up to a limit of each plane. Until the
// ticket's Wait has returned, or the plane is destroyed, the caller keeps the buffers valid, does
// not read outputs and does not write inputs. Where OrderOn has put later work of a stream behind
// an operation, that work may do so, too. A ticket that was neither waited for nor ordered on a
// stream may be destroyed only once the plane is broken or closed.
//
// No wait lasts for ever. When a peer dies or hangs, the wait ends by its deadline with a Status
// that names the rank (errors::PeerLost, errors::PeersTimedOut; the latter names the ranks that the
// operation waited for, and the plane is broken). The first error breaks the plane:
// every later operation and every pending Wait returns an error, and nothing touches the callers'
// memory any more. A call that returns an error has told no other rank anything; once it has
// returned a ticket, others may have all they need. A call whose arguments are refused
// (INVALID_ARGUMENT, UNIMPLEMENTED) does not break the plane. Deadlines are in the time of
// Clock::Monotonic().
//
// tests/common/dataplane/ holds one conformance suite for all planes.
#ifndef OPTSHARD_COMMON_DATAPLANE_DATA_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_DATA_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/dataplane/peer_replicas.h"
#include "common/dataplane/reduction.h"
#include "common/dtype.h"
#include "common/ids.h"
#include "common/ticket.h"

namespace optshard {

// Values are stable: they are part of the wire's message tags.
enum class StepPhase : uint8_t { kReduce = 1, kCommit = 2, kPublish = 3, kControl = 4 };

// Names an operation. All ranks give the same tag; a plane checks as much of that as is cheap.
struct StepTag {
  Generation generation = 0;
  StepNumber step = 0;
  int32_t bucket = 0;
  StepPhase phase = StepPhase::kControl;
};

class DataPlane;

// The ranks that share memory, of a job in which not all do.
struct NodeRanks {
  DataPlane* plane = nullptr;  // of these ranks alone
  std::vector<Rank> ranks;     // ascending
};

// Calls come from one thread at a time (the step's), except Abort and status, which any thread may
// call.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  virtual Rank rank() const = 0;
  virtual int world_size() const = 0;

  // The replicas of all ranks, where this process can access their memory directly. Then gradients
  // need not be reduced, nor parameters published, by operations. What a peer wrote before it
  // started an AllGather may be read after the wait for that. Valid as long as the plane. Null for
  // most planes.
  virtual const PeerReplicas* peer_replicas() const { return nullptr; }

  // The ranks of this rank's node, where all nodes of the job have one; else null. Their plane has
  // peer_replicas(), in which the other ranks' are empty. Ranks are called there as they are here,
  // and its world_size() is the job's; only these ranks start its operations, and only they may be
  // members. An AllGather of it leaves the other ranks' places as they are. Lives as long as this
  // one and is aborted and closed with it; whoever gets an error from it aborts this one.
  virtual const NodeRanks* node() const { return nullptr; }

  // Sums `elements` values of every member in the order that `reduction` says and divides by its
  // divisor, with the bits of one IEEE division, all in ArithmeticOf(dtype), of which `result` is,
  // too. That is written at the owner only (elsewhere it may be null) and may be the same as
  // `contribution` where the types are the same. The call copies what it needs of `reduction`.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag,
                                                         const ExecutionContext& context,
                                                         const Reduction& reduction, DType dtype,
                                                         const void* contribution, void* result,
                                                         int64_t elements) = 0;

  // Copies `bytes` from the owner's `data` into that of every other member. The owner is a member.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag,
                                                          const ExecutionContext& context,
                                                          Rank owner,
                                                          absl::Span<const Rank> members,
                                                          void* data, size_t bytes) = 0;

  // Gives every rank the small contributions (at most 1 MiB) of all: `gathered` holds
  // world_size * bytes_per_rank, by rank. Decisions are then made alike everywhere.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag,
                                                            const ExecutionContext& context,
                                                            const void* contribution,
                                                            void* gathered,
                                                            size_t bytes_per_rank) = 0;

  // OK while operations may start, else why not: the plane is broken or closed. Planes watch their
  // peers by themselves, so that a rank whose process has ended is named here soon, even where
  // nobody waits. Any thread.
  virtual absl::Status status() = 0;

  // Breaks the plane: pending and later waits return `reason` promptly. The first reason stays. Any
  // thread.
  virtual void Abort(const absl::Status& reason) = 0;

  // Closes the plane cleanly: returns when all ranks have called it, or at the deadline. No
  // operation may be started after it.
  virtual absl::Status Close(absl::Time deadline) = 0;
};

// All replicas that this rank reaches, or those of its node; null where it reaches none.
inline const PeerReplicas* ReplicasReachedBy(const DataPlane& plane) {
  return plane.node() == nullptr ? plane.peer_replicas() : plane.node()->plane->peer_replicas();
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_DATA_PLANE_H_
