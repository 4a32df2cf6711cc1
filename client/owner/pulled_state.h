// Puts the whole state of an optimizer together as it comes from the shard owners.
#ifndef OPTSHARD_CLIENT_OWNER_PULLED_STATE_H_
#define OPTSHARD_CLIENT_OWNER_PULLED_STATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/control/state_destination.h"
#include "client/owner/state_layout.h"
#include "client/state_dict.h"
#include "server/shard/state/parameter_slots.h"

namespace optshard {

// Each byte is copied once, into the tensor that it stays in. Thread-safe.
class PulledState final : public StateDestination {
 public:
  explicit PulledState(const StateLayout& layout);  // what it points to outlives this

  // What all owners together send of it.
  int64_t expected_bytes() const;

  // INTERNAL for a piece that does not fit the layout; RESOURCE_EXHAUSTED.
  absl::Status Take(const Piece& piece, absl::Span<const Bytes> values) override;

  // The "state" of a state dict, once all has come. A parameter that was never updated has none.
  std::map<int64_t, StateValues> Finish();

 private:
  // By parameter.
  struct Entry {
    std::vector<ParameterSlot> slots;
    std::map<std::string, double> numbers;  // the slots that are one number
    std::map<std::string, at::Tensor> tensors;
  };

  absl::Status TakeNumber(const Piece& piece, absl::Span<const Bytes> values);
  at::Tensor TensorOf(int parameter, const ParameterSlot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const std::vector<int64_t>& ShapeOf(int parameter, const ParameterSlot& slot) const;

  const StateLayout layout_;
  absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_PULLED_STATE_H_
