// A small optimizer whose state is known, to be saved and compared.
#ifndef OPTSHARD_TESTS_SERVER_CHECKPOINT_SAVED_MODEL_H_
#define OPTSHARD_TESTS_SERVER_CHECKPOINT_SAVED_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/owner_writer.h"

namespace optshard::testing {

// Has arrays of every format, a slot with a shape of its own, parameters of one element and of
// none, and names that files cannot hold as they are. Thread-compatible.
class SavedModel {
 public:
  // The values follow from the step. `big_elements`: of the parameter "big", in float32.
  explicit SavedModel(StepNumber step, int64_t big_elements = 3000);

  struct Saved {
    std::string name;
    CheckpointManifest manifest;
  };
  // Creates, writes and commits a checkpoint of that step.
  absl::StatusOr<Saved> Save(Directory& root, int world_size, PartitionPolicy policy,
                             const OwnerWriteOptions& options = {}) const;

  // Only what one rank writes.
  OwnerState StateOf(Rank rank, int world_size, PartitionPolicy policy) const;
  CheckpointManifest Description(int world_size, PartitionPolicy policy) const;

  // "" where the checkpoint gives all values of this model to all ranks of such a world, or the
  // first difference.
  std::string Difference(const CheckpointReader& reader, int world_size,
                         PartitionPolicy policy) const;

  static std::string BlobOf(Rank rank, StepNumber step);

 private:
  std::vector<OwnerSlice> SlicesOf(Rank rank, int world_size, PartitionPolicy policy) const;
  const std::string& BytesOf(int parameter, int array, ArrayPart part) const;

  const StepNumber step_;
  std::vector<CheckpointParameter> parameters_;
  ParameterSpace space_;
  std::map<std::tuple<int, int, ArrayPart>, std::string> bytes_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_CHECKPOINT_SAVED_MODEL_H_
