// The view of a shard owner that runs: it reads the owner's store, board and timeline.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_LIVE_SHARD_VIEW_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_LIVE_SHARD_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/gradient_mode.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "common/plan.h"
#include "common/state_options.h"
#include "server/shard/inspection/shard_view.h"
#include "server/shard/inspection/step_board.h"
#include "server/shard/inspection/timeline_ring.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"

namespace optshard {

// Thread-safe.
class LiveShardView final : public ShardView {
 public:
  struct Options {
    MemberId member;
    const ParameterSpace* space = nullptr;
    const Plan* plan = nullptr;
    const std::vector<GroupUpdate>* groups = nullptr;
    GradientMode gradient_mode = GradientMode::kReduce;
    StateOptions state;
    int bucket_count = 0;
    const ShardStore* store = nullptr;
    const StepBoard* board = nullptr;
    const TimelineRing* timeline = nullptr;
  };  // everything that is pointed to outlives the view

  explicit LiveShardView(Options options);

  ShardDescription Describe() const override;
  std::vector<OwnedSlice> Slices(int64_t first, int64_t count) const override;
  absl::StatusOr<SlotRead> ReadSlot(int32_t parameter, absl::string_view name,
                                    int64_t offset_elements, absl::Span<double> out) const override;
  std::vector<TimelineSpan> Timeline() const override;

 private:
  const std::vector<Slice>& slices() const;
  const GroupUpdate& group_of(int parameter) const;
  // What ReadSlot serves of the parameter: "step" only where PyTorch keeps it too.
  std::vector<ParameterSlot> SlotsOf(int parameter) const;
  absl::Status CheckReadable() const;

  const Options options_;
  int owned_parameters_ = 0;
  int64_t owned_elements_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_LIVE_SHARD_VIEW_H_
