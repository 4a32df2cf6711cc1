// The segment through which a trainer asks its shard owner for a step and gets the result. A step
// takes no RPC, no allocation and no copy of parameters or gradients, which lie in segments of
// their own. Between steps the optimizer state is read and replaced through it, a window at a time.
//
//   line 0   request bell; numbers of the request and of the last one withdrawn; its header
//   line 1   reply bell; numbers of the request that was begun and of the one that was answered
//   then     the reply's values and its status, cut to fit
//   then     which parameters have gradients, one bit each; whose are sparse, likewise; of those,
//            which rows they have; the hyperparameters' bytes; the blob
//   then     a line that says which elements of which slot are read or replaced, or what the ranks
//            share, and how often the trainer has written to its parameters; the window with the
//            values, or with those bytes
#ifndef OPTSHARD_COMMON_ATTACH_DOORBELL_H_
#define OPTSHARD_COMMON_ATTACH_DOORBELL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/attach/write_counts.h"
#include "common/byte_share.h"
#include "common/ids.h"
#include "common/link/bell.h"
#include "common/link/memory_budget.h"
#include "common/link/segment.h"
#include "common/link/unique_fd.h"

namespace optshard {

// How many elements of the optimizer state one request reads or replaces at most: 128 KiB.
constexpr int64_t kStateWindowElements = 16384;

// Both ends compute the same sizes from the parameter space.
struct DoorbellShape {
  int parameters = 0;
  int groups = 0;
  // By parameter: its rows (common/row_marks.h), where its gradient may be sparse; otherwise 0.
  // Empty: none may be.
  std::vector<int64_t> rows = {};

  // Room for the encoded hyperparameters of all groups together.
  size_t hyperparameter_bytes() const { return size_t{4096} * (1 + groups); }
  // In which the rows of all gradients can be marked.
  size_t mark_words() const;
  size_t bytes() const;
};

// Some elements of one slot of a parameter (server/shard/state/state_access.h).
struct StateRange {
  int32_t parameter = 0;
  int32_t slot = 0;
  int64_t offset_elements = 0;
  int64_t elements = 0;
};

// What a trainer asks for.
struct DoorbellRequest {
  // Values are stable: they are shared between processes.
  enum class Kind : uint32_t {
    kStep = 1,
    kSync = 2,
    kVerify = 3,
    kReadState = 4,
    kWriteState = 5,
    kShareBytes = 6,
    kStageState = 7,         // StateAccess::BeginStaging(kState)
    kDropStaged = 8,         // StateAccess::DropStaged
    kFinishLoading = 9,      // OwnerLink::FinishLoading
    kStageAll = 10,          // StateAccess::BeginStaging(kAll)
    kGiveAdded = 11,         // OwnerLink::GiveAddedValues
    kReplaceState = 12,      // OwnerLink::ReplaceState
    kWriteStaged = 13,       // StateAccess::Stage
    kWriteStagedBytes = 14,  // StateAccess::StageBytes
    kLeave = 15,             // the trainer is about to detach
  };
  // These have a state range, which counts for those that read or write some, and of what else is
  // here only the timeout and the writes. They leave all else for the next step as it was.
  bool is_of_state() const {
    switch (kind) {
      case Kind::kReadState:
      case Kind::kStageState:
      case Kind::kStageAll:
      case Kind::kDropStaged:
      case Kind::kWriteStagedBytes:
        return true;
      default:
        return writes_values();
    }
  }
  bool writes_values() const { return kind == Kind::kWriteState || kind == Kind::kWriteStaged; }
  bool gives_hyperparameters() const { return kind == Kind::kStep || kind == Kind::kFinishLoading; }
  Kind kind = Kind::kStep;
  absl::Duration timeout;
  // Until it was made. Of each kind.
  WriteCount writes;
  // For kStep: which call this is. One that was made already is answered at once: a trainer that
  // got no answer asks again. For kFinishLoading: after which step the job goes on.
  CallNumber call = 0;
  // For kFinishLoading: LoadedStep::token. One that was done already is answered at once, too.
  uint64_t load_token = 0;
  std::vector<bool> has_gradient;  // by parameter
  // By parameter: the marks of the rows that its gradient has, as many words as its rows take.
  // Null: the gradient is dense, or there is none. Those that were taken point into `mark_memory`.
  std::vector<const uint64_t*> row_marks;
  std::vector<uint64_t> mark_memory;
  // Written only when they change; the version tells whether they did. 0: none given yet.
  uint64_t hyperparameter_version = 0;
  std::string hyperparameters;
  bool has_blob = false;
  std::string blob;
  StateRange state;
  // As many as the range has elements where it writes_values(), otherwise none. Those that were
  // taken point into `value_memory`.
  absl::Span<const double> values;
  std::vector<double> value_memory;
  // For kWriteStagedBytes: values as the slot keeps them, or the parameter. The range has as many
  // elements as there are bytes. Of a request that was taken they lie in the window.
  absl::Span<const char> bytes;
  // For kShareBytes, which has only this, the timeout and the writes. Of a request that was taken,
  // the bytes lie in the window, where the trainer finds what they have become once it is answered.
  ByteShare share;
};

// The result of a request.
struct DoorbellReply {
  absl::Status status;
  StepNumber step = 0;  // the last finished one; after a skipped call the same as before it
  bool broken = false;  // nothing will work any more
  absl::Duration prepare;
  absl::Duration commit;
  absl::Duration apply;
};

// One trainer's doorbell, as either end sees it. A waiting end sleeps at once: on a host without
// two cores a rank, a trainer that spins would keep its core from the thread that it waits for.
// Each call below belongs to one end and to one thread there, except Wake*, which any thread may
// call.
class Doorbell {
 public:
  // The server's end; the segment is all zeros. RESOURCE_EXHAUSTED as Segment::Create.
  static absl::StatusOr<Doorbell> Create(Rank rank, const DoorbellShape& shape,
                                         MemoryBudget& budget);
  // The trainer's end. INVALID_ARGUMENT as Segment::Attach.
  static absl::StatusOr<Doorbell> Attach(Rank rank, const DoorbellShape& shape, UniqueFd fd);

  const Segment& segment() const { return segment_; }

  // --- The trainer's end.

  // Writes a request and rings; returns its number: 1, 2, ... The gradients' and hyperparameters'
  // sizes are the shape's; `row_marks` may be empty. INVALID_ARGUMENT for a blob beyond
  // kMaxBlobBytes, too many bytes of hyperparameters, or more elements of state than the window
  // has: then nothing was asked.
  absl::StatusOr<uint64_t> Ask(const DoorbellRequest& asked);

  // Returns true once the request of this number is answered; false at the deadline
  // (Clock::Monotonic()), or after WakeTrainer was called.
  bool WaitForReply(uint64_t number, absl::Time deadline);
  // Ends the present wait for a reply, or the next one.
  void WakeTrainer();
  // Takes back the request and all before it. Returns whether the server will not work on it; false
  // where it has begun already, or begins at this moment.
  bool Withdraw(uint64_t number);
  // The reply to the last answered request.
  DoorbellReply ReadReply() const;

  // --- Both ends: the values that a kReadState request is given, from its answer until the next
  // request. kStateWindowElements.
  absl::Span<double> state_window() const;
  // The same memory, for kShareBytes. kMaxShareBytes.
  absl::Span<char> share_window() const;

  // --- The server's end. Nothing that a trainer writes is trusted: it is copied once, then
  // checked.

  // Returns true where there is a request that was not taken yet; waits for one until the deadline
  // or until WakeServer is called.
  bool WaitForRequest(absl::Time deadline);
  // Ends the present wait for a request, or the next one.
  void WakeServer();
  // Takes the request, which counts as begun. `taken` is reused: nothing is allocated once it has
  // grown, and its hyperparameters stay as they are where their version has not changed. CANCELLED
  // where the request was withdrawn, INVALID_ARGUMENT naming what is wrong with it; call Answer in
  // either case.
  absl::Status Take(DoorbellRequest* taken);
  // Whether the trainer no longer waits for the request that was taken.
  bool IsWithdrawn() const;
  void Answer(const DoorbellReply& how);

 private:
  struct RequestLine;
  struct ReplyLine;
  struct ReplyText;
  struct StateLine;

  Doorbell(Segment segment, const DoorbellShape& shape);
  char* at(size_t offset) const { return static_cast<char*>(segment_.data()) + offset; }
  RequestLine& request() const;
  ReplyLine& reply() const;
  ReplyText& text() const;
  absl::Span<uint64_t> gradient_words() const;
  absl::Span<uint64_t> sparse_words() const;
  // The marks of all parameters whose gradients may be sparse, one behind the other.
  uint64_t* mark_words() const;
  void WriteMarks(const std::vector<const uint64_t*>& row_marks);
  void TakeMarks(DoorbellRequest* taken);
  char* hyperparameters() const;
  char* blob() const;
  StateLine& state_line() const;
  uint64_t Ring(const DoorbellRequest& asked);
  void WriteStep(const DoorbellRequest& asked);
  void WriteState(const DoorbellRequest& asked);
  bool TakeState(DoorbellRequest* taken);
  void WriteShare(const ByteShare& share);
  bool TakeShare(ByteShare* taken) const;

  Segment segment_;
  DoorbellShape shape_;
  uint64_t number_ = 0;                  // of the last request that this end asked, or took
  uint64_t hyperparameter_version_ = 0;  // that this end wrote last
  uint32_t heard_ = 0;                   // of the bell that this end waits at
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_ATTACH_DOORBELL_H_
