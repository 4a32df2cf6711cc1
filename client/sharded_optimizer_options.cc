#include "client/sharded_optimizer_options.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/task_place.h"

namespace optshard {
namespace {

void Take(const Variables& variable, const char* name, std::string& target) {
  const char* value = variable(name);
  if (value != nullptr && *value != '\0') target = value;
}

// Of a process that srun or mpirun has started: which task it is of how many.
absl::Status TakeTask(const Variables& variable, ShardedOptimizerOptions& options) {
  const absl::StatusOr<absl::optional<TaskPlace>> place = TaskPlaceFromVariables(variable);
  if (!place.ok()) return place.status();
  if (!place->has_value()) {
    return absl::InvalidArgumentError(
        "the environment variables RANK and WORLD_SIZE are not set, and none of those by which "
        "srun and mpirun say it, so this process does not know which rank of how many it is: start "
        "the trainer with optshard-run, torchrun, srun or mpirun, or set both for every process; "
        "RANK=0 WORLD_SIZE=1 is one rank alone");
  }
  options.rank = (*place)->task;
  options.world_size = (*place)->tasks;
  return absl::OkStatus();
}

// The rank of a process of which the node and its place there are known, where all nodes have as
// many. Nothing where one of them is not set.
absl::StatusOr<absl::optional<Rank>> RankOnNode(const Variables& variable, int world_size) {
  const char* const here = variable("LOCAL_WORLD_SIZE");
  const char* const node = variable("GROUP_RANK");
  const char* const local = variable("LOCAL_RANK");
  if (here == nullptr || node == nullptr || local == nullptr) return absl::optional<Rank>();
  const absl::StatusOr<int> each = NumberOfVariable("LOCAL_WORLD_SIZE", here, 1, world_size);
  if (!each.ok()) return each.status();
  if (world_size % *each != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable RANK is not set, and WORLD_SIZE=", world_size,
        " is no multiple of LOCAL_WORLD_SIZE=", *each,
        ", so GROUP_RANK does not tell the rank: expected as many ranks on every node; set RANK"));
  }
  const absl::StatusOr<int> number =
      NumberOfVariable("GROUP_RANK", node, 0, world_size / *each - 1);
  if (!number.ok()) return number.status();
  const absl::StatusOr<int> place = NumberOfVariable("LOCAL_RANK", local, 0, *each - 1);
  if (!place.ok()) return place.status();
  return absl::make_optional(*number * *each + *place);
}

absl::Status OneWithoutTheOther(const char* set, const char* other, const char* hint = "") {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", set, " is set but ", other,
                   " is not: set both (torchrun does) or neither", hint));
}

absl::Status TakeRank(const Variables& variable, ShardedOptimizerOptions& options) {
  const char* rank = variable("RANK");
  const char* world_size = variable("WORLD_SIZE");
  if (rank == nullptr && world_size == nullptr) return TakeTask(variable, options);
  if (world_size == nullptr) return OneWithoutTheOther("RANK", "WORLD_SIZE");
  const absl::StatusOr<int> size = NumberOfVariable("WORLD_SIZE", world_size, 1, 1 << 20);
  if (!size.ok()) return size.status();
  if (rank == nullptr) {
    const absl::StatusOr<absl::optional<Rank>> on_node = RankOnNode(variable, *size);
    if (!on_node.ok()) return on_node.status();
    if (!on_node->has_value()) {
      return OneWithoutTheOther("WORLD_SIZE", "RANK",
                                "; where every node has as many ranks, GROUP_RANK, LOCAL_RANK and "
                                "LOCAL_WORLD_SIZE do in place of RANK");
    }
    options.rank = **on_node;
    options.world_size = *size;
    return absl::OkStatus();
  }
  const absl::StatusOr<int> number = NumberOfVariable("RANK", rank, 0, *size - 1);
  if (!number.ok()) return number.status();
  options.rank = *number;
  options.world_size = *size;
  return absl::OkStatus();
}

absl::Status TakeMaster(const Variables& variable, ShardedOptimizerOptions& options) {
  const char* address = variable("MASTER_ADDR");
  const char* port = variable("MASTER_PORT");
  if (address == nullptr || port == nullptr) return absl::OkStatus();
  absl::StatusOr<int> number = NumberOfVariable("MASTER_PORT", port, 1, 65534);
  if (!number.ok()) return number.status();
  options.embedded_coordinator = absl::StrCat(address, ":", *number + 1);
  return absl::OkStatus();
}

absl::Status TakeJoinTimeout(const Variables& variable, ShardedOptimizerOptions& options) {
  std::string value;
  Take(variable, "OPTSHARD_JOIN_TIMEOUT", value);
  if (value.empty()) return absl::OkStatus();
  absl::Duration timeout;
  // "inf" is a duration, too.
  if (absl::ParseDuration(value, &timeout) && timeout > absl::ZeroDuration() &&
      timeout < absl::InfiniteDuration()) {
    options.join_timeout = timeout;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable OPTSHARD_JOIN_TIMEOUT=\"", value,
                   "\": expected a finite duration of more than 0, such as 90s or 10m"));
}

const char* FromProcess(const char* name) { return std::getenv(name); }

// "RANK=1, WORLD_SIZE is not set"
std::string WhatIsSaid(const Variables& variable) {
  std::string said;
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    const char* value = variable(name);
    absl::StrAppend(&said, said.empty() ? "" : ", ", name,
                    value == nullptr ? " is not set" : absl::StrCat("=", value));
  }
  return said;
}

std::string NumberOrNotSet(int number) {
  return number == ShardedOptimizerOptions::kNotSet ? "not set" : absl::StrCat(number);
}

}  // namespace

absl::StatusOr<ShardedOptimizerOptions> ShardedOptimizerOptions::FromEnvironment() {
  return FromVariables(FromProcess);
}

absl::StatusOr<ShardedOptimizerOptions> WithKnownRank(ShardedOptimizerOptions options) {
  return WithKnownRank(std::move(options), FromProcess);
}

absl::StatusOr<ShardedOptimizerOptions> WithKnownRank(ShardedOptimizerOptions options,
                                                      const Variables& variable) {
  constexpr int kNotSet = ShardedOptimizerOptions::kNotSet;
  if (options.world_size == 1 && options.rank == kNotSet) options.rank = 0;
  if (options.world_size == kNotSet || options.rank == kNotSet) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ShardedOptimizerOptions: rank is ", NumberOrNotSet(options.rank), " and world_size is ",
        NumberOrNotSet(options.world_size), ", expected both (in the environment ",
        WhatIsSaid(variable),
        "): take the options from ShardedOptimizerOptions::FromEnvironment(), or set rank and "
        "world_size; world_size = 1 is one rank alone"));
  }
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("ShardedOptimizerOptions: rank is ", options.rank, " and world_size is ",
                     options.world_size, ", expected a rank of at least 0 and below world_size"));
  }
  return options;
}

absl::StatusOr<ShardedOptimizerOptions> ShardedOptimizerOptions::FromVariables(
    const Variables& variable) {
  ShardedOptimizerOptions options;
  if (absl::Status status = TakeRank(variable, options); !status.ok()) return status;
  Take(variable, "OPTSHARD_COORDINATOR", options.coordinator);
  if (options.coordinator.empty()) {
    if (absl::Status status = TakeMaster(variable, options); !status.ok()) return status;
  }
  Take(variable, "OPTSHARD_ATTACH", options.attach);
  Take(variable, "OPTSHARD_PLANE", options.plane);
  Take(variable, "OPTSHARD_JOB", options.job);
  Take(variable, "OPTSHARD_INTERFACE", options.interface);
  Take(variable, "OPTSHARD_OWNER_LISTEN", options.owner_listen);
  Take(variable, "OPTSHARD_NODE", options.node);
  Take(variable, "OPTSHARD_LOG_LEVEL", options.log_level);
  if (absl::Status status = TakeJoinTimeout(variable, options); !status.ok()) return status;
  return options;
}

}  // namespace optshard
