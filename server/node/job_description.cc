#include "server/node/job_description.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/memory_layout.h"
#include "common/request_limits.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/safetensors.h"
#include "server/node/rank_set.h"

namespace optshard {
namespace {

// Enough that the partition gives every rank the same, and few enough for a job of many ranks.
constexpr int64_t kMatricesOfARank = 4;

// Of the tensors that have parameters: others are counters and masks.
bool IsFloatingPoint(TensorType type, DType* dtype) {
  switch (type) {
    case TensorType::kF32:
      *dtype = DType::kFloat32;
      return true;
    case TensorType::kF64:
      *dtype = DType::kFloat64;
      return true;
    case TensorType::kF16:
      *dtype = DType::kFloat16;
      return true;
    case TensorType::kBF16:
      *dtype = DType::kBFloat16;
      return true;
    default:
      return false;
  }
}

bool Is16Bit(DType dtype) { return SizeOf(dtype) == 2; }

ParameterSpace WithMainGradients(const ParameterSpace& space) {
  std::vector<GroupSpec> groups = space.groups();
  for (GroupSpec& group : groups) {
    for (ParameterSpec& parameter : group.parameters) {
      parameter.main_gradient = Is16Bit(parameter.dtype);
    }
  }
  return ParameterSpace(std::move(groups));
}

// A snapshot copies the state and the parameters that the rank owns.
int64_t SnapshotBytes(const MemoryNeed& need, const std::vector<Slice>& owned,
                      const ParameterSpace& space) {
  int64_t bytes = need.slots_bytes;
  for (const Slice& slice : owned) {
    const DType dtype = space.parameter(slice.parameter).dtype;
    bytes = SaturatingAdd(
        bytes, AlignedElements(slice.elements, dtype) * static_cast<int64_t>(SizeOf(dtype)));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<ParameterSpace> SpaceOfElements(int64_t elements, DType dtype, int world_size) {
  if (elements < 1 || world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a model of ", elements, " parameters and ",
                                                   world_size,
                                                   " ranks: expected at least one of each"));
  }
  const int64_t matrices = std::min(elements, kMatricesOfARank * world_size);
  const int64_t each = (elements + matrices - 1) / matrices;
  const auto rows = static_cast<int64_t>(std::sqrt(static_cast<double>(each)));
  const int64_t columns = (each + rows - 1) / rows;
  GroupSpec group;
  for (int64_t i = 0; i < matrices; ++i) {
    group.parameters.push_back(
        {absl::StrCat("some.module.with.a.long.name.weight.", i), {rows, columns}, dtype});
  }
  return ParameterSpace({std::move(group)});
}

absl::StatusOr<ParameterSpace> SpaceOfModel(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  PosixFileSystem files;
  const absl::StatusOr<std::unique_ptr<Directory>> directory = files.OpenDirectory(folder);
  if (!directory.ok()) return directory.status();
  const absl::StatusOr<std::unique_ptr<File>> file =
      (*directory)->OpenFile(slash == std::string::npos ? path : path.substr(slash + 1));
  if (!file.ok()) return file.status();
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(**file);
  if (!header.ok()) return header.status();
  GroupSpec group;
  for (const SafetensorsTensor& tensor : header->tensors) {
    ParameterSpec parameter;
    if (!IsFloatingPoint(tensor.type, &parameter.dtype)) continue;
    parameter.name = tensor.name;
    parameter.shape = tensor.shape;
    group.parameters.push_back(std::move(parameter));
  }
  if (group.parameters.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path,
        "' has no tensor of type F32, F64, F16 or BF16: expected the parameters of a model"));
  }
  return ParameterSpace({std::move(group)});
}

int64_t NodeMemoryNeed::total() const {
  int64_t bytes = 0;
  for (const auto& [rank, of_rank] : ranks) bytes = SaturatingAdd(bytes, of_rank.total());
  return bytes;
}

int64_t NodeMemoryNeed::snapshot_bytes() const {
  int64_t bytes = 0;
  for (const auto& [rank, of_rank] : ranks) bytes = SaturatingAdd(bytes, of_rank.snapshot_bytes);
  return bytes;
}

absl::StatusOr<NodeMemoryNeed> NodeMemoryNeedOf(const JobDescription& job,
                                                const ParameterSpace& space) {
  if (job.ranks.empty() || *job.ranks.rbegin() >= job.world_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the node has the ranks %s, but the job has %d: expected ranks from 0 to "
                        "one less than --world-size",
                        RankSetText(job.ranks), job.world_size));
  }
  AttachRequest request;
  // They are kept beside the parameters, and are not known yet.
  for (std::string* name : {&request.job, &request.optimizer, &request.node}) {
    name->assign(kMaxNameBytes, 'x');
  }
  request.threads = job.threads;
  request.spec.world_size = job.world_size;
  request.spec.space = job.main_gradients ? WithMainGradients(space) : space;
  request.spec.rules.resize(space.group_count(), {job.rule});
  request.spec.gradient_mode = job.gradient_mode;
  request.spec.policy = job.policy;
  request.spec.state = job.state;
  request.spec.share_parameters = job.share_parameters;
  const absl::Status valid = request.spec.Validate();
  if (!valid.ok()) return valid;
  const absl::StatusOr<Partition> partition = MakePartition(space, job.world_size, job.policy);
  if (!partition.ok()) return partition.status();

  const MemoryLayout layout(request.spec.space);
  const int members = MessageMembers(job.world_size, static_cast<int>(job.ranks.size()), job.plane);
  NodeMemoryNeed node;
  for (const Rank rank : job.ranks) {
    request.rank = rank;
    const bool has_parameters = !job.share_parameters || rank == *job.ranks.begin();
    const absl::StatusOr<MemoryNeed> need = MemoryNeedOf(request, layout, has_parameters, members);
    if (!need.ok()) return need.status();
    node.ranks[rank] = {*need, SnapshotBytes(*need, partition->slices[rank], space)};
  }
  return node;
}

}  // namespace optshard
