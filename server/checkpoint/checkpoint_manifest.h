// A checkpoint of one optimizer, at one step:
//
//   DIR/                          what --checkpoint-dir names
//     step-000000001000/          one checkpoint; a second attempt at the same step ends in ".1"
//       owner-00000.safetensors   what rank 0's shard owner has: parameters, slots, and the blob of
//       owner-00001.safetensors   its trainer
//       manifest.json             what all of it is; there only once the rest is complete
//
// docs/checkpoint_format.md has every field. A directory without a manifest is no checkpoint: it is
// being written, or its writer died.
#ifndef OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_MANIFEST_H_
#define OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/group_rule.h"
#include "common/ids.h"
#include "common/partition.h"
#include "server/checkpoint/array_format.h"

namespace optshard {

constexpr int kCheckpointFormatVersion = 1;
constexpr size_t kMaxLabels = 64;
constexpr char kManifestName[] = "manifest.json";
// The array that holds the parameter itself; the others are its slots, by PyTorch's names.
constexpr char kParameterArray[] = "parameter";

// Something with a value for each element of a parameter, or with a shape of its own.
struct CheckpointArray {
  std::string name;
  ArrayFormat format = ArrayFormat::kFloat32;
  absl::optional<std::vector<int64_t>> shape;  // nothing: the parameter's
};

// A parameter's slots that are one number, by name: NAdam's mu_product.
using ScalarValues = std::map<std::string, double>;

struct CheckpointParameter {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  int group = 0;
  StepNumber steps = 0;  // how often it was updated
  ScalarValues scalars;
  std::vector<CheckpointArray> arrays;

  const std::vector<int64_t>& ShapeOf(int array) const;
  int64_t ElementsOf(int array) const;
};

// A stretch of an array, or of its scales, that lies in one file.
struct CheckpointTensor {
  // In the safetensors file: "exp_avg/fc.weight", or "exp_avg/fc.weight[1024:2048]" where it is not
  // all of it; "exp_avg.scales/fc.weight"; names as EscapeName has them.
  std::string name;
  int parameter = -1;  // -1: the trainer's blob
  int array = 0;       // of the parameter's
  ArrayPart part = ArrayPart::kValues;
  // Of the array, not of the part.
  int64_t offset_elements = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
  std::vector<uint64_t> checksums;  // one for each kChecksumBlockBytes of it

  bool is_blob() const { return parameter < 0; }
};

struct CheckpointFile {
  Rank rank = 0;
  std::string name;
  int64_t bytes = 0;
  // Of everything before the tensors.
  int64_t header_bytes = 0;
  uint64_t header_checksum = 0;
  std::vector<CheckpointTensor> tensors;
};

// Thread-compatible value type.
struct CheckpointManifest {
  std::string job;
  std::string optimizer;
  StepNumber step = 0;
  Generation generation = 0;
  int world_size = 0;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  absl::Time saved_at = absl::UnixEpoch();  // in milliseconds
  std::vector<std::string> labels;          // one with a label is never pruned
  std::vector<GroupRule> groups;
  std::vector<CheckpointParameter> parameters;
  std::vector<CheckpointFile> files;  // one for each rank, in their order

  int64_t bytes() const;  // of all files

  // Checks that every element of every array is in exactly one tensor, that every rank has its
  // file, that numbers are in range and names can stand in files. INVALID_ARGUMENT naming the
  // parameter, file or tensor.
  absl::Status Validate() const;
};

// That a checkpoint can have these labels: at most kMaxLabels, short texts without control
// characters. INVALID_ARGUMENT naming the first that it cannot have.
absl::Status CheckLabels(absl::Span<const std::string> labels);

// What a rank's file is called: "owner-00003.safetensors".
std::string OwnerFileName(Rank rank);

// The name and the safetensors shape of a stretch of an array.
std::string TensorNameOf(const CheckpointParameter& parameter, int array, ArrayPart part,
                         int64_t offset_elements, int64_t elements);
std::vector<int64_t> TensorShapeOf(const CheckpointParameter& parameter, int array, ArrayPart part,
                                   int64_t elements);

// Of the trainer's blob: U8.
constexpr char kBlobTensor[] = "trainer_blob";

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_MANIFEST_H_
