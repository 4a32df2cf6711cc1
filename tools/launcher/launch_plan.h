// What optshard-run is to start on this node, from its options and the environment.
#ifndef OPTSHARD_TOOLS_LAUNCHER_LAUNCH_PLAN_H_
#define OPTSHARD_TOOLS_LAUNCHER_LAUNCH_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/task_place.h"

namespace optshard {

// As given; kNotGiven and empty texts are not.
struct LaunchFlags {
  static constexpr int kNotGiven = -1;
  int ranks = kNotGiven;
  int nodes = kNotGiven;
  int node_rank = kNotGiven;
  std::string coordinator;
  int master_port = kNotGiven;
  std::string job;
  bool server = true;
  int max_restarts = 0;
  std::string server_options;
  std::string coordinator_options;
  std::string log_level;
  std::vector<std::string> program;
};

struct LaunchPlan {
  int ranks = 1;  // of this node, and of each other one
  int nodes = 1;
  int node_rank = 0;
  // HOST:PORT, where node 0's coordinator listens. Empty: at a free port of the loopback.
  std::string coordinator;
  std::string master_host = "127.0.0.1";
  int master_port = 0;  // 0: a free one
  std::string job;
  bool server = true;
  int max_restarts = 0;
  std::vector<std::string> server_options;
  std::vector<std::string> coordinator_options;
  std::string log_level;
  std::vector<std::string> program;

  int world_size() const { return nodes * ranks; }
  int first_rank() const { return node_rank * ranks; }
  int last_rank() const { return first_rank() + ranks - 1; }
  bool has_coordinator() const { return node_rank == 0; }
};

// INVALID_ARGUMENT where what is needed is not known, or does not fit together.
absl::StatusOr<LaunchPlan> MakeLaunchPlan(const LaunchFlags& flags, const Variables& variable);

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_LAUNCH_PLAN_H_
