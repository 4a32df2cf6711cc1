#include "client/sharded_optimizer_options.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

using Variables = std::function<const char*(const char*)>;

void Take(const Variables& variable, const char* name, std::string& target) {
  const char* value = variable(name);
  if (value != nullptr && *value != '\0') target = value;
}

absl::StatusOr<int> Number(const char* name, const char* value, int least, int most) {
  int number = 0;
  if (absl::SimpleAtoi(value, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat("environment variable ", name, "=\"", value,
                                                 "\": expected a whole number from ", least, " to ",
                                                 most));
}

absl::Status TakeRank(const Variables& variable, ShardedOptimizerOptions& options) {
  const char* rank = variable("RANK");
  const char* world_size = variable("WORLD_SIZE");
  if (rank == nullptr && world_size == nullptr) return absl::OkStatus();
  if (rank == nullptr || world_size == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable ", rank == nullptr ? "WORLD_SIZE" : "RANK", " is set but ",
        rank == nullptr ? "RANK" : "WORLD_SIZE", " is not: set both (torchrun does) or neither"));
  }
  absl::StatusOr<int> size = Number("WORLD_SIZE", world_size, 1, 1 << 20);
  if (!size.ok()) return size.status();
  absl::StatusOr<int> number = Number("RANK", rank, 0, *size - 1);
  if (!number.ok()) return number.status();
  options.rank = *number;
  options.world_size = *size;
  return absl::OkStatus();
}

absl::Status TakeMaster(const Variables& variable, ShardedOptimizerOptions& options) {
  const char* address = variable("MASTER_ADDR");
  const char* port = variable("MASTER_PORT");
  if (address == nullptr || port == nullptr) return absl::OkStatus();
  absl::StatusOr<int> number = Number("MASTER_PORT", port, 1, 65534);
  if (!number.ok()) return number.status();
  options.embedded_coordinator = absl::StrCat(address, ":", *number + 1);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShardedOptimizerOptions> ShardedOptimizerOptions::FromEnvironment() {
  return FromVariables([](const char* name) -> const char* { return std::getenv(name); });
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
