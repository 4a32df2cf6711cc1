// The state of exactly one step of what a rank owns, as long as somebody reads it.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_SHARD_SNAPSHOT_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_SHARD_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/block_code.h"
#include "common/dtype.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/state_format.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/right_of_way.h"

namespace optshard {

// Of the values of a part.
inline int64_t ElementBytes(StateFormat format) {
  return format == StateFormat::kInt8 ? 1 : static_cast<int64_t>(SizeOf(DTypeOf(format)));
}

// Its destruction closes it. Thread-compatible, but for state(), CopyAhead() and Close(), which any
// thread may call.
class ShardSnapshot {
 public:
  // Elements of a slot, all of which are written together.
  struct Part {
    int32_t parameter = 0;
    std::string slot;  // by the names of SlotsOfParameter
    // Of the bytes that are given out: slots in 8 bits are decoded to float32, and a slot that is
    // one number is float64. Corrections are int8.
    StateFormat format = StateFormat::kFloat32;
    int64_t offset_elements = 0;
    int64_t elements = 0;
    // Of a slot that is kept in 8 bits (ReadKept).
    absl::optional<BlockCode> code = absl::nullopt;

    int64_t bytes() const { return elements * ElementBytes(format); }
  };

  // A part's values as they are given out: those of kLive are right if the part is live afterwards,
  // too. Then they were not written meanwhile. Otherwise Read gives them again.
  enum class PartState {
    kLive,
    kKept,  // they stay as they are
    // A step has overwritten them, and there was no memory to keep them. On a device: they were not
    // copied, or the step that they are of has failed there.
    kLost,
  };

  struct Bytes {
    const char* data = nullptr;
    // Keeps them; null where the snapshot does.
    std::shared_ptr<const void> owner;
  };

  virtual ~ShardSnapshot() = default;

  virtual StepNumber step() const = 0;
  virtual Generation generation() const = 0;
  SnapshotMoment moment() const { return {generation(), step()}; }

  // By param group, of that step; empty where it was opened at this owner alone.
  virtual absl::Span<const Hyperparameters> hyperparameters() const = 0;

  // What the rank's trainer keeps with that step; empty where it keeps nothing, or nobody asked for
  // it.
  virtual absl::string_view blob() const = 0;

  // Every element of what is owned is in one. Those that are one number come first: who reads knows
  // then how often each parameter was updated.
  virtual const std::vector<Part>& parts() const = 0;

  virtual PartState state(int part) const = 0;

  // Elements [first, first + elements) of the part, in the host's byte order. Those of a part in 8
  // bits begin at a multiple of kCodeGrid, counted from the part's first.
  virtual Bytes Read(int part, int64_t first, int64_t elements) const = 0;

  // The same elements as they are kept: of a part in 8 bits the codes, or the scales of the blocks
  // that the elements fill or begin. Of any other part the values; it has no scales.
  enum class KeptArray { kValues, kScales };
  virtual Bytes ReadKept(int part, KeptArray array, int64_t first, int64_t elements) const = 0;

  // Copies parameters that are not copied yet, and says whether all are those of the moment at
  // which it was opened. Call it before they are read, and after.
  //   FAILED_PRECONDITION  the trainer has written to them since, perhaps before they were copied;
  //                        or it was killed
  //   ABORTED              somebody else has got their memory, or it is closed
  //   UNAVAILABLE, DEADLINE_EXCEEDED  a trainer in another process does not say whether it has
  virtual absl::Status KeepParameters() { return absl::OkStatus(); }
  // Call it now and then between the two: a trainer may be killed that has shown by a call that it
  // wrote nothing.
  virtual void SettleParameters() {}

  // Copies what the next steps would have to copy before they write it, and returns once all of it
  // is copied, or the snapshot closed. Steps that come meanwhile hardly wait for it.
  virtual void CopyAhead() {}

  // Of its rank's steps: who reads it in the background gives way to them. By default there are
  // none.
  virtual std::shared_ptr<const RightOfWay> steps() const {
    return std::make_shared<const RightOfWay>();
  }

  // Nothing is kept for it any more. What Read gave stays memory, whatever it holds. Idempotent.
  virtual void Close() = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_SHARD_SNAPSHOT_H_
