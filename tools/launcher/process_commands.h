// The command lines and variables of a launched job's processes.
#ifndef OPTSHARD_TOOLS_LAUNCHER_PROCESS_COMMANDS_H_
#define OPTSHARD_TOOLS_LAUNCHER_PROCESS_COMMANDS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/task_place.h"
#include "tools/launcher/launch_plan.h"

namespace optshard {

// Where the processes of a node find each other.
struct LaunchPlaces {
  std::string coordinator_binary;
  std::string server_binary;
  std::string coordinator_port_file;
  std::string server_port_file;
  std::string socket;       // of the shard server
  std::string coordinator;  // HOST:PORT; empty until it is known
};

std::vector<std::string> CoordinatorCommand(const LaunchPlan& plan, const LaunchPlaces& places);

// OPTSHARD_PLANE, OPTSHARD_INTERFACE and OPTSHARD_OWNER_LISTEN, which a trainer reads for an owner
// of its own, count for the server's. `drain` is how long a step may last after SIGTERM.
std::vector<std::string> ServerCommand(const LaunchPlan& plan, const LaunchPlaces& places,
                                       const Variables& variable, absl::Duration drain);

// What a trainer finds in its environment beside what the launcher has: the variables that torchrun
// sets, and OPTSHARD_COORDINATOR, OPTSHARD_ATTACH and OPTSHARD_JOB. `life` counts its predecessors.
std::map<std::string, std::string> TrainerVariables(const LaunchPlan& plan,
                                                    const LaunchPlaces& places, int rank, int life,
                                                    const Variables& variable);

// `environment`, as "NAME=VALUE" with a null at its end, with these variables in place of its own.
std::vector<std::string> WithVariables(const char* const* environment,
                                       const std::map<std::string, std::string>& variables);

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_PROCESS_COMMANDS_H_
