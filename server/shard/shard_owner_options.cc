#include "server/shard/shard_owner_options.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/request_id.h"

namespace optshard {

absl::Status CheckSupported(const ParameterSpace& space, const DeviceApi* device) {
  const std::string expected = device == nullptr ? "cpu" : device->kind();
  for (int p = 0; p < space.parameter_count(); ++p) {
    const ParameterSpec& parameter = space.parameter(p);
    if (parameter.device == expected) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("parameter %d \"%s\" is on %s; the shard owner steps parameters on %s only",
                        p, parameter.name, parameter.device, expected));
  }
  return absl::OkStatus();
}

absl::Status CheckOwnerOptions(const ShardOwner::Options& options) {
  if (options.spec.world_size < 1 || options.rank < 0 || options.rank >= options.spec.world_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d of world size %d: the rank must be in [0, world size)",
                        options.rank, options.spec.world_size));
  }
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("threads is %d, expected at least 1, or 0 for as many as the ranks of this "
                        "node leave each other",
                        options.threads));
  }
  if (options.snapshot_memory_bytes.value_or(0) < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "snapshot_memory is %d bytes, expected at least 0", *options.snapshot_memory_bytes));
  }
  if (options.coordinator == nullptr) {
    return absl::InvalidArgumentError("a shard owner needs a coordinator");
  }
  if (options.spec.world_size > 1 && options.plane_factory == nullptr) {
    return absl::InvalidArgumentError("more than one rank need a data plane");
  }
  absl::Status valid = options.spec.Validate();
  if (!valid.ok()) return valid;
  const bool updates_on_device = options.device != nullptr && !options.state_on_host;
  if (updates_on_device && options.make_executor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a shard owner on %s needs an executor for it", options.device->name()));
  }
  return CheckSupported(options.spec.space, options.device.get());
}

absl::Status CheckPlan(const Plan& plan, const OptimizerSpec& spec) {
  if (plan.world_size != spec.world_size ||
      plan.partition.slices.size() != static_cast<size_t>(spec.world_size)) {
    return absl::InternalError(
        absl::StrFormat("the coordinator's plan is for %d ranks and has slices of %d, expected %d",
                        plan.world_size, plan.partition.slices.size(), spec.world_size));
  }
  if (plan.policy != spec.policy) {
    return absl::InternalError(
        absl::StrFormat("the coordinator's plan has the partition policy \"%s\", expected \"%s\"",
                        NameOf(plan.policy), NameOf(spec.policy)));
  }
  return CheckPartition(spec.space, plan.partition, plan.policy);
}

int ThreadsOf(const ReductionTree& tree, Rank rank) {
  int ranks_of_node = 1;
  for (const std::vector<Rank>& group : tree.node_groups) {
    if (std::find(group.begin(), group.end(), rank) != group.end()) {
      ranks_of_node = static_cast<int>(group.size());
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_of_node);
}

JoinRequest MakeJoinRequest(const ShardOwner::Options& options) {
  JoinRequest request;
  request.job = options.job;
  request.optimizer = options.optimizer;
  request.rank = options.rank;
  request.request_id = NewRequestId();
  request.spec = options.spec;
  request.node = options.node;
  request.owner_address = options.owner_address;
  request.pid = getpid();
  request.begins_anew = options.begins_anew;
  return request;
}

}  // namespace optshard
