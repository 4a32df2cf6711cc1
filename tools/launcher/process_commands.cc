#include "tools/launcher/process_commands.h"

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// Adds --name=VALUE where the variable is set.
void AddFrom(const Variables& variable, const char* name, const char* option,
             std::vector<std::string>& command) {
  const char* const value = variable(name);
  if (value != nullptr && *value != '\0') command.push_back(absl::StrCat("--", option, "=", value));
}

}  // namespace

std::vector<std::string> CoordinatorCommand(const LaunchPlan& plan, const LaunchPlaces& places) {
  std::vector<std::string> command = {
      places.coordinator_binary,
      absl::StrCat("--listen=", plan.coordinator.empty() ? "127.0.0.1:0" : plan.coordinator),
      absl::StrCat("--job=", plan.job), absl::StrCat("--world-size=", plan.world_size()),
      absl::StrCat("--port-file=", places.coordinator_port_file),
      // Shorter than the ranks' own, so that all are told the same: who is missing.
      "--join-timeout=50s", absl::StrCat("--log-level=", plan.log_level)};
  if (plan.nodes > 1) command.push_back("--exit-when-done");
  command.insert(command.end(), plan.coordinator_options.begin(), plan.coordinator_options.end());
  return command;
}

std::vector<std::string> ServerCommand(const LaunchPlan& plan, const LaunchPlaces& places,
                                       const Variables& variable, absl::Duration drain) {
  std::vector<std::string> command = {
      places.server_binary,
      absl::StrCat("--job=", plan.job),
      absl::StrCat("--node-ranks=", plan.first_rank(), "-", plan.last_rank()),
      absl::StrCat("--coordinator=", places.coordinator),
      absl::StrCat("--socket=", places.socket),
      absl::StrCat("--port-file=", places.server_port_file),
      absl::StrCat("--drain-timeout=", absl::FormatDuration(drain)),
      absl::StrCat("--log-level=", plan.log_level)};
  AddFrom(variable, "OPTSHARD_PLANE", "plane", command);
  AddFrom(variable, "OPTSHARD_INTERFACE", "interface", command);
  AddFrom(variable, "OPTSHARD_OWNER_LISTEN", "owner-listen", command);
  command.insert(command.end(), plan.server_options.begin(), plan.server_options.end());
  return command;
}

std::map<std::string, std::string> TrainerVariables(const LaunchPlan& plan,
                                                    const LaunchPlaces& places, int rank, int life,
                                                    const Variables& variable) {
  const int world_size = plan.world_size();
  std::map<std::string, std::string> variables = {
      {"RANK", absl::StrCat(rank)},
      {"LOCAL_RANK", absl::StrCat(rank - plan.first_rank())},
      {"WORLD_SIZE", absl::StrCat(world_size)},
      {"LOCAL_WORLD_SIZE", absl::StrCat(plan.ranks)},
      {"GROUP_RANK", absl::StrCat(plan.node_rank)},
      {"GROUP_WORLD_SIZE", absl::StrCat(plan.nodes)},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", absl::StrCat(rank)},
      {"ROLE_WORLD_SIZE", absl::StrCat(world_size)},
      {"MASTER_ADDR", plan.master_host},
      {"MASTER_PORT", absl::StrCat(plan.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", absl::StrCat(life)},
      {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(plan.max_restarts)},
      {"TORCHELASTIC_RUN_ID", plan.job},
      // Nobody listens at MASTER_PORT: rank 0 opens a store of torch there if it needs one.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"OPTSHARD_COORDINATOR", places.coordinator},
      {"OPTSHARD_ATTACH", plan.server ? absl::StrCat("unix:", places.socket) : "embedded"},
      {"OPTSHARD_JOB", plan.job}};
  if (variable("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr) {
    variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  }
  if (plan.ranks > 1 && variable("OMP_NUM_THREADS") == nullptr) variables["OMP_NUM_THREADS"] = "1";
  return variables;
}

std::vector<std::string> WithVariables(const char* const* environment,
                                       const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (; *environment != nullptr; ++environment) {
    const std::string variable = *environment;
    if (variables.count(variable.substr(0, variable.find('='))) == 0) result.push_back(variable);
  }
  for (const auto& [name, value] : variables) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

}  // namespace optshard
