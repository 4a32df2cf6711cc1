// The view of a shard owner that runs: it reads the owner's store, board and timeline.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_LIVE_SHARD_VIEW_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_LIVE_SHARD_VIEW_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "common/partition.h"
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
    const StepBoard* board = nullptr;
    const TimelineRing* timeline = nullptr;
  };  // everything that is pointed to outlives the view

  // What there is to see of one generation.
  struct Shown {
    std::shared_ptr<const GenerationShape> shape;
    GroupUpdates groups;
    std::shared_ptr<const ShardStore> store;
    std::shared_ptr<AgreedSnapshots> snapshots;  // of it
    std::shared_ptr<SnapshotMemory> snapshot_memory;
  };

  LiveShardView(Options options, Shown shown);

  // Readers see this generation from now on; who is reading meanwhile begins again. Waits for no
  // reader.
  void Show(Shown shown);

  ShardDescription Describe() const override;
  RankActivity Activity() const override { return options_.timeline->activity(); }
  std::vector<OwnedSlice> Slices(int64_t first, int64_t count) const override;
  std::vector<OwnedSlice> SlicesOf(int32_t parameter) const override;
  absl::StatusOr<SlotRead> ReadSlot(int32_t parameter, absl::string_view name,
                                    int64_t offset_elements, absl::Span<double> out) const override;
  absl::StatusOr<std::unique_ptr<ShardSnapshot>> OpenSnapshot(
      bool keep_copies, absl::Duration patience) const override;
  absl::StatusOr<std::shared_ptr<AgreedSnapshots>> agreed_snapshots() const override;
  absl::StatusOr<CheckpointManifest> DescribeCheckpoint(bool is_model) const override;
  std::vector<TimelineSpan> Timeline() const override;

 private:
  std::shared_ptr<const Shown> shown() const;
  std::vector<GroupRule> Rules(const Shown& shown) const;
  std::vector<OwnedSlice> SlicesOf(const Shown& shown, int64_t first, int64_t end) const;
  absl::StatusOr<SlotRead> ReadSlotOf(const std::shared_ptr<const Shown>& shown, int32_t parameter,
                                      absl::string_view name, int64_t offset_elements,
                                      absl::Span<double> out) const;
  absl::Status CheckReadable() const;

  const Options options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Shown> shown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_LIVE_SHARD_VIEW_H_
