// The calls of NCCL that the NCCL data plane uses, behind an interface: nccl_library.h implements
// it with the real library, tests/testing/fake_nccl.h in one process.
//
// Everything is nonblocking: a call enqueues work on a stream, or begins something, and returns.
// Whether it is complete is asked for with NcclCommunicator::state. Streams are those of
// ExecutionContext::stream. Memory is that of the communicator's device.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_API_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_API_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "common/ids.h"

namespace optshard {

enum class NcclState {
  kBusy,   // the last call is not complete: no other may be made, but for state and Abort
  kReady,  // the last call is complete, and what it enqueued is on the stream
};

// One rank's end of a communicator. Calls come from one thread at a time; Abort may come while
// another thread is in `state`. After Destroy or Abort has begun, nothing else may be called.
//
// The errors of all calls: INVALID_ARGUMENT for wrong use of the library, UNAVAILABLE where NCCL
// has lost a peer, INTERNAL for everything else, with NCCL's own text.
class NcclCommunicator {
 public:
  virtual ~NcclCommunicator() = default;

  // Also tells of errors that came after a call had returned (ncclCommGetAsyncError).
  virtual absl::StatusOr<NcclState> state() = 0;

  // Collectives: every rank of the communicator makes the same ones in the same order.
  virtual absl::Status Broadcast(void* data, size_t bytes, Rank root, void* stream) = 0;
  // The sum, in `dtype` and in an order that NCCL chooses, is written at the root only.
  virtual absl::Status Sum(const void* contribution, void* sum, int64_t elements, DType dtype,
                           Rank root, void* stream) = 0;
  virtual absl::Status AllGather(const void* contribution, void* gathered, size_t bytes_per_rank,
                                 void* stream) = 0;

  // Between two ranks the n-th Send meets the n-th Receive; their sizes are equal.
  virtual absl::Status Send(const void* data, size_t bytes, Rank to, void* stream) = 0;
  virtual absl::Status Receive(void* data, size_t bytes, Rank from, void* stream) = 0;

  // Lets NCCL use this memory in place (ncclCommRegister), until the communicator ends.
  virtual absl::Status Register(void* data, size_t bytes) = 0;

  // Ends a communicator whose work is complete everywhere. May block for as long as peers take.
  virtual void Destroy() = 0;

  // Ends it at once and stops work that is enqueued: streams then go on, and what they wrote has no
  // meaning. May block for ever, in the library or in the driver.
  virtual void Abort() = 0;
};

// The library. GroupStart, the calls of communicators in between and GroupEnd come from one thread.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // NCCL's version code: 22809 is 2.28.9.
  virtual int version() const = 0;

  // By which the ranks of a new communicator find each other. Opaque bytes; one rank makes it.
  virtual absl::StatusOr<std::string> NewUniqueId() = 0;

  // Begins to connect; the communicator is ready once all ranks have come.
  virtual absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(absl::string_view unique_id,
                                                                    Rank rank, int world_size) = 0;

  // The calls in between are one launch: none waits for another. Every call of a communicator that
  // enqueues is made in a group.
  virtual absl::Status GroupStart() = 0;
  virtual absl::Status GroupEnd() = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_API_H_
