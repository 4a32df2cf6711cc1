#include "examples/rank_main.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "client/status_error.h"

ABSL_FLAG(int, ranks, 2, "how many ranks to start");
ABSL_FLAG(std::string, coordinator_binary, "", "optshard-coordinator; empty: beside this binary");
ABSL_FLAG(std::string, server_binary, "", "optshard-server; empty: beside this binary");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT, to act as one rank");
ABSL_FLAG(std::string, attach, "",
          "as one rank: embedded, or unix:PATH of a shard server; empty: OPTSHARD_ATTACH");
ABSL_FLAG(int, rank, -1, "to act as one rank; torchrun's variables do as well");
ABSL_FLAG(int, world_size, 1, "to act as one rank");
ABSL_FLAG(bool, launched, false, "set by the process that started this rank");
ABSL_FLAG(std::string, log_level, "warning", "debug, info, warning, error or off");

namespace optshard {

int RankMain(int argc, char** argv, const std::string& usage,
             const std::function<int(const std::vector<std::string>& arguments)>& run) {
  absl::SetProgramUsageMessage(usage);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  absl::ParseCommandLine(argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    const int rank = absl::GetFlag(FLAGS_rank);
    const std::string program = std::filesystem::path(argv[0]).filename();
    std::fprintf(stderr, "%s%s: %s\n", program.c_str(),
                 rank < 0 ? "" : absl::StrCat(" (rank ", rank, ")").c_str(), error.what());
    return EXIT_FAILURE;
  }
}

bool ActsAsRank() { return absl::GetFlag(FLAGS_rank) >= 0 || std::getenv("RANK") != nullptr; }

ShardedOptimizerOptions RankOptions() {
  ShardedOptimizerOptions options;
  if (absl::GetFlag(FLAGS_rank) < 0) {
    options = ValueOrThrow(ShardedOptimizerOptions::FromEnvironment());
  } else {
    options.rank = absl::GetFlag(FLAGS_rank);
    options.world_size = absl::GetFlag(FLAGS_world_size);
    options.coordinator = absl::GetFlag(FLAGS_coordinator);
  }
  if (!absl::GetFlag(FLAGS_attach).empty()) options.attach = absl::GetFlag(FLAGS_attach);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  return options;
}

RankLink LinkToLauncher() { return RankLink(absl::GetFlag(FLAGS_launched)); }

RankLauncher::Options LauncherOptions(const std::string& job,
                                      const std::vector<std::string>& arguments) {
  RankLauncher::Options options;
  options.services.job = job;
  options.services.world_size = absl::GetFlag(FLAGS_ranks);
  options.services.coordinator_binary = absl::GetFlag(FLAGS_coordinator_binary);
  options.services.server_binary = absl::GetFlag(FLAGS_server_binary);
  options.services.log_level = absl::GetFlag(FLAGS_log_level);
  options.arguments = arguments;
  return options;
}

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace optshard
