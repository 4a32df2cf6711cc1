// The collective data plane: how gradients reach owners and parameters reach replicas.
//
// Operations are asynchronous: a call starts one and returns a ticket. All ranks issue the same
// operations with the same tags in the same order; up to a plane's own limit many may be under way.
// Buffers stay valid and unread (for outputs) or unwritten (for inputs) until the ticket's Wait has
// returned or the plane is destroyed. Nothing waits for ever: a peer that died or hung gives, by
// the deadline, a Status that names its rank (errors::PeerLost, errors::PeersTimedOut). After the
// first error a plane is broken: every operation and every pending Wait returns an error. A call
// that returns an error has told no other rank anything; from a ticket on, others may have all they
// need. (A call that is refused for its arguments, with INVALID_ARGUMENT or UNIMPLEMENTED, breaks
// nothing.) Deadlines are in the time of Clock::Monotonic().
//
// tests/common/dataplane/ holds one conformance suite for all planes.
#ifndef OPTSHARD_COMMON_DATAPLANE_DATA_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_DATA_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/peer_replicas.h"
#include "common/dtype.h"
#include "common/ids.h"

namespace optshard {

// Values are stable: they are part of the wire's message tags.
enum class StepPhase : uint8_t { kReduce = 1, kCommit = 2, kPublish = 3, kControl = 4 };

// Names an operation. Equal on all ranks of the operation; a plane checks what it cheaply can.
struct StepTag {
  Generation generation = 0;
  StepNumber step = 0;
  int32_t bucket = 0;
  StepPhase phase = StepPhase::kControl;
};

// Where an operation's memory lies and in which order it runs there.
struct ExecutionContext {
  std::string device = "cpu";
  void* stream = nullptr;  // opaque: a CUDA stream, a fake's stream; null on hosts
};

// A started operation. Bound to the thread that waits for it; one Wait a ticket. Destroying a
// ticket whose Wait was never called is allowed only once its plane is broken or closed.
class Ticket {
 public:
  virtual ~Ticket() = default;

  // Blocks until the operation is complete on this rank, its error, or the deadline (then
  // PeersTimedOut naming the ranks waited for, and the plane is broken). Outputs may be read and
  // inputs written after it returned OK. May do the operation's arithmetic on the calling thread.
  virtual absl::Status Wait(absl::Time deadline) = 0;

  // Orders later work on context's stream after the operation, without blocking the host.
  // FAILED_PRECONDITION on a plane whose memory is the host's: wait instead.
  virtual absl::Status OrderOn(const ExecutionContext& context) = 0;
};

// Calls come from one thread at a time (the step's), except Abort, which any thread may call.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  virtual Rank rank() const = 0;
  virtual int world_size() const = 0;

  // The replicas of all ranks, where this process reaches their memory directly: then gradients
  // need not be reduced nor parameters published by operations. What a peer wrote before it started
  // an AllGather may be read after the wait for it. Valid as long as the plane; null for most
  // planes.
  virtual const PeerReplicas* peer_replicas() const { return nullptr; }

  // Sums `elements` values of every rank in the order of the plan's reduction tree and divides by
  // the world size, in one IEEE division, accumulating in fp32 (fp64 for float64). `result` is
  // written at the owner only (elsewhere it may be null) and may be the same as `contribution`.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag,
                                                         const ExecutionContext& context,
                                                         Rank owner, DType dtype,
                                                         const void* contribution, void* result,
                                                         int64_t elements) = 0;

  // Copies `bytes` from the owner's `data` into every other rank's.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag,
                                                          const ExecutionContext& context,
                                                          Rank owner, void* data, size_t bytes) = 0;

  // Gives every rank the small contributions (at most 1 MiB) of all: `gathered` holds
  // world_size * bytes_per_rank, by rank. Decisions are then made alike everywhere.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag,
                                                            const ExecutionContext& context,
                                                            const void* contribution,
                                                            void* gathered,
                                                            size_t bytes_per_rank) = 0;

  // Breaks the plane: pending and later waits return `reason` promptly. Idempotent (the first
  // reason stays), any thread.
  virtual void Abort(const absl::Status& reason) = 0;

  // Ends use in good order: returns when all ranks have called it, or at the deadline. After it no
  // operation may start.
  virtual absl::Status Close(absl::Time deadline) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_DATA_PLANE_H_
