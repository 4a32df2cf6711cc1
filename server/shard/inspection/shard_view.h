// What can be read from a shard owner while it trains. A reader takes no lock that a step waits
// for.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/gradient_mode.h"
#include "common/group_rule.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_format.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/shard/inspection/rank_phase.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {

struct ShardDescription {
  MemberId member;
  Generation generation = 0;
  int world_size = 0;
  GradientMode gradient_mode = GradientMode::kReduce;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  StepProgress progress;
  absl::Status failure;
  int owned_parameters = 0;  // of which at least one slice is owned, be it an empty one
  int64_t owned_elements = 0;
  int64_t state_bytes = 0;  // of all slots, without padding
  // What its snapshots may have for copies, and what of it is used.
  int64_t snapshot_memory_bytes = 0;
  int64_t snapshot_used_bytes = 0;
  int bucket_count = 0;
  // By param group, with the hyperparameters of the last step; the initial ones before it.
  std::vector<GroupRule> groups;
  RankActivity activity;
};

// A slice that this rank owns.
struct OwnedSlice {
  int32_t parameter = 0;
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  DType gradient_dtype = DType::kFloat32;
  int group = 0;
  int64_t offset_elements = 0;
  int64_t elements = 0;
  StepNumber step = 0;             // updates of the parameter so far
  std::vector<std::string> slots;  // what ReadSlot serves
  // Of those of them whose shape is not the parameter's: [] of one number for the whole parameter,
  // such as "step".
  std::map<std::string, std::vector<int64_t>> slot_shapes;
  int64_t state_bytes = 0;
};

// What ReadSlot has copied.
struct SlotRead {
  StepNumber step = 0;                         // whose values these are; all are of the same one
  StateFormat format = StateFormat::kFloat32;  // of the slot
};

// One operation of a step, for timelines. Times are in microseconds since the owner started.
struct TimelineSpan {
  StepNumber step = 0;
  int bucket = -1;    // -1: of the whole step
  std::string phase;  // "reduce", "update", "publish", "prepare", "commit", "apply"
  int64_t start_us = 0;
  int64_t duration_us = 0;
};

// Thread-safe.
class ShardView {
 public:
  virtual ~ShardView() = default;

  virtual ShardDescription Describe() const = 0;

  // The same as in Describe, for less: takes no lock and no memory.
  virtual RankActivity Activity() const = 0;

  // At most `count` of the owned slices, in order of parameter and offset, from number `first` on.
  virtual std::vector<OwnedSlice> Slices(int64_t first, int64_t count) const = 0;

  // Those of one parameter, in order of offset; none where nothing of it is owned here.
  virtual std::vector<OwnedSlice> SlicesOf(int32_t parameter) const = 0;

  // Copies elements [offset, offset + out.size()) of a slot of the parameter; double holds the
  // values of every dtype exactly. A slot with a shape of its own has the elements of that shape;
  // one that is one number for the whole parameter is of float64. "step", which a rule may export,
  // is of float32: how often the parameter was updated.
  //   NOT_FOUND     no such parameter or slot; the known ones are listed
  //   OUT_OF_RANGE  not all of the elements are owned here; the owned ranges are listed, or the
  //                 number of elements of a slot with a shape of its own
  //   ABORTED       steps kept changing the values during the copy: ask again, or for fewer
  //                 elements
  //   DATA_LOSS     the state is torn or in doubt and is not given out
  virtual absl::StatusOr<SlotRead> ReadSlot(int32_t parameter, absl::string_view slot,
                                            int64_t offset_elements,
                                            absl::Span<double> out) const = 0;

  // Opens a snapshot of all slots at the last finished step. While a step is being applied it waits
  // for its end, for at most `patience`. With `keep_copies` it has memory for what steps change
  // meanwhile.
  //   RESOURCE_EXHAUSTED  the copies need more memory than snapshots may have
  //   ABORTED             a step was being applied all the time: ask again
  //   DATA_LOSS           the state is torn or in doubt and is not given out
  virtual absl::StatusOr<std::unique_ptr<ShardSnapshot>> OpenSnapshot(
      bool keep_copies, absl::Duration patience) const = 0;

  // Snapshots that all owners of the job open at the same step. They end with the generation.
  //   DATA_LOSS  the state is torn or in doubt and is not given out
  virtual absl::StatusOr<std::shared_ptr<AgreedSnapshots>> agreed_snapshots() const = 0;

  // What a checkpoint, or a model, of the optimizer has, with the hyperparameters of the last step;
  // no files, no step. UNIMPLEMENTED where an optimizer class steps a group, but for a model.
  virtual absl::StatusOr<CheckpointManifest> DescribeCheckpoint(bool is_model) const = 0;

  // The operations of the last steps, the oldest first.
  virtual std::vector<TimelineSpan> Timeline() const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_H_
