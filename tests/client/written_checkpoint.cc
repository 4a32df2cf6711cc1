#include "tests/client/written_checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/owner/optimizer_spec_of.h"
#include "client/replica/parameter_list.h"
#include "client/rule_options.h"
#include "common/block_recode.h"
#include "server/checkpoint/owner_writer.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/shard/saving/checkpoint_description.h"
#include "server/update/group_update.h"

namespace optshard::testing {
namespace {

std::string BytesOf(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

CheckpointManifest Describe(ShardedOptimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> tensors;
  CheckpointManifest description;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    tensors.push_back(group.params());
    const RuleOptions rule = RuleOptions::From(group.options());
    description.groups.push_back({rule.rule(), rule.values()});
  }
  const ParameterList list =
      MakeParameterList(tensors, optimizer.options().parameter_names).value();
  const OptimizerSpec spec =
      OptimizerSpecOf(optimizer.options(), list.space, optimizer.param_groups());
  const std::vector<GroupUpdate> updates = ValidateGroups(spec).value();
  description.job = optimizer.options().job;
  description.optimizer = optimizer.options().optimizer;
  description.step = optimizer.finished_step();
  description.generation = 1;
  description.world_size = optimizer.options().world_size;
  description.policy = optimizer.options().policy;
  for (int p = 0; p < spec.space.parameter_count(); ++p) {
    const int group = spec.space.group_of(p);
    description.parameters.push_back(
        DescribeParameter(spec.space.parameter(p), group, updates[group], spec.state));
  }
  return description;
}

}  // namespace

std::string NewCheckpointRoot() {
  static std::atomic<int> last{0};
  std::string root = absl::StrCat(::testing::TempDir(), "/checkpoints_", getpid(), "_", ++last);
  std::filesystem::create_directories(root);
  return root;
}

void WrittenCheckpoint::WriteShare(ShardedOptimizer& optimizer,
                                   const std::vector<at::Tensor>& parameters,
                                   const std::string& blob) {
  Directory* directory = nullptr;
  CheckpointManifest description;
  {
    absl::MutexLock lock(&mutex_);
    if (made_.directory == nullptr) {
      description_ = Describe(optimizer);
      description_.saved_at = absl::FromUnixMillis(absl::ToUnixMillis(absl::Now()));
      made_ = CreateCheckpoint(*PosixFileSystem().OpenDirectory(root_).value(), description_.step)
                  .value();
    }
    directory = made_.directory.get();
    description = description_;
  }
  OwnerState state;
  state.rank = optimizer.options().rank;
  if (!blob.empty()) state.blob = blob;
  std::deque<std::string> memory;
  const auto in_memory = [&memory](std::string bytes) {
    memory.push_back(std::move(bytes));
    return InMemory(memory.back().data());
  };
  for (size_t p = 0; p < parameters.size(); ++p) {
    OwnedRange owned;
    bool owns = false;
    for (const OwnedRange& range : optimizer.owner_of(static_cast<int>(p))) {
      if (range.rank != state.rank) continue;
      owned = range;
      owns = true;
    }
    const bool is_copy = description.policy == PartitionPolicy::kReplicated && state.rank > 0;
    if (!owns || is_copy) continue;
    const CheckpointParameter& described = description.parameters[p];
    std::map<std::string, at::Tensor> slots = optimizer.state(parameters[p]);
    ParameterCount count;
    count.parameter = static_cast<int>(p);
    count.steps = static_cast<StepNumber>(slots.at("step").item<double>());
    for (size_t a = 0; a < described.arrays.size(); ++a) {
      const CheckpointArray& array = described.arrays[a];
      const at::Tensor values =
          array.name == kParameterArray
              ? parameters[p].detach().reshape(-1).narrow(0, owned.offset_elements, owned.elements)
              : slots.at(array.name).reshape(-1);
      OwnerSlice slice;
      slice.parameter = static_cast<int>(p);
      slice.array = static_cast<int>(a);
      slice.offset_elements = array.shape.has_value() ? 0 : owned.offset_elements;
      slice.elements = values.numel();
      if (const absl::optional<BlockCode> code = BlockCodeOf(array.format)) {
        std::string codes(PartBytes(array.format, ArrayPart::kValues, slice.elements), 0);
        std::string scales(PartBytes(array.format, ArrayPart::kScales, slice.elements), 0);
        Recode(values.const_data_ptr<float>(), slice.elements,
               {*code, reinterpret_cast<uint8_t*>(codes.data()), scales.data()});
        slice.values = in_memory(std::move(codes));
        slice.scales = in_memory(std::move(scales));
      } else {
        slice.values = in_memory(BytesOf(values));
      }
      state.slices.push_back(std::move(slice));
      slots.erase(array.name);
    }
    slots.erase("step");
    for (const auto& [name, value] : slots) count.scalars[name] = value.item<double>();
    state.counts.push_back(std::move(count));
  }
  // Outside of the lock: it waits for the disk.
  OwnerPart part = WriteOwnerFile(*directory, description.parameters, state).value();
  absl::MutexLock lock(&mutex_);
  parts_.push_back(std::move(part));
}

std::string WrittenCheckpoint::Commit() {
  absl::MutexLock lock(&mutex_);
  const CheckpointManifest manifest = MakeManifest(description_, std::move(parts_)).value();
  const absl::Status committed = CommitCheckpoint(*made_.directory, manifest);
  EXPECT_EQ(committed, absl::OkStatus());
  return made_.name;
}

}  // namespace optshard::testing
