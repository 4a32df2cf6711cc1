#include "client/sharded_optimizer_options.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

absl::Status TakeRank(const Variables& variable, ShardedOptimizerOptions& options) {
  const char* rank = variable("RANK");
  const char* world_size = variable("WORLD_SIZE");
  if (rank == nullptr && world_size == nullptr) return TakeTask(variable, options);
  if (rank == nullptr || world_size == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable ", rank == nullptr ? "WORLD_SIZE" : "RANK", " is set but ",
        rank == nullptr ? "RANK" : "WORLD_SIZE", " is not: set both (torchrun does) or neither"));
  }
  absl::StatusOr<int> size = NumberOfVariable("WORLD_SIZE", world_size, 1, 1 << 20);
  if (!size.ok()) return size.status();
  absl::StatusOr<int> number = NumberOfVariable("RANK", rank, 0, *size - 1);
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
  return options;
}

}  // namespace optshard
