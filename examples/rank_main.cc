#include "examples/rank_main.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/status_error.h"
#include "common/cli/log_level_option.h"

namespace optshard {
namespace {

std::string LogLevelOf(const RankFlags& flags) {
  if (!flags.log_level.empty()) return flags.log_level;
  const char* const variable = std::getenv("OPTSHARD_LOG_LEVEL");
  return variable == nullptr || *variable == '\0' ? "warning" : variable;
}

}  // namespace

void AddRankOptions(CommandLine& line, RankFlags* flags) {
  line.Group("To start ranks");
  line.Add("ranks", &flags->ranks, "how many ranks to start").AtLeast(1);
  line.Add("coordinator-binary", &flags->coordinator_binary, "optshard-coordinator")
      .Value("PATH")
      .Default("beside this program");
  line.Add("server-binary", &flags->server_binary, "optshard-server")
      .Value("PATH")
      .Default("beside this program");
  line.Group("To act as one rank");
  line.Add("rank", &flags->rank, "this process's rank")
      .AtLeast(0)
      .Default("torchrun's RANK; without it the program starts ranks");
  line.Add("world-size", &flags->world_size, "with --rank: how many ranks there are").AtLeast(1);
  line.Add("coordinator", &flags->coordinator, "with --rank: address of the job's coordinator")
      .Value("HOST:PORT")
      .Default("for one rank alone, one of its own");
  line.Add("attach", &flags->attach,
           "where the shard owner runs: embedded, or unix:PATH of a shard server's socket")
      .Value("WHERE")
      .Default("OPTSHARD_ATTACH of the environment, else embedded");
  line.Add("launched", &flags->launched, "set by the process that started this rank").Hidden();
  line.Group("Messages");
  AddLogLevelOption(line, &flags->log_level)
      .Default("OPTSHARD_LOG_LEVEL of the environment, else warning");
}

int RankMain(int argc, char** argv, CommandLine line, RankFlags* flags,
             const std::function<int()>& run) {
  flags->arguments.assign(argv + 1, argv + argc);
  if (const auto end = line.ParseOrEnd(argc, argv)) return *end;
  try {
    return run();
  } catch (const std::exception& error) {
    const std::string program = std::filesystem::path(argv[0]).filename();
    std::fprintf(stderr, "%s%s: %s\n", program.c_str(),
                 flags->rank < 0 ? "" : absl::StrCat(" (rank ", flags->rank, ")").c_str(),
                 error.what());
    return EXIT_FAILURE;
  }
}

bool ActsAsRank(const RankFlags& flags) {
  return flags.rank >= 0 || std::getenv("RANK") != nullptr;
}

ShardedOptimizerOptions RankOptions(const RankFlags& flags) {
  ShardedOptimizerOptions options;
  if (flags.rank < 0) {
    options = ValueOrThrow(ShardedOptimizerOptions::FromEnvironment());
  } else {
    options.rank = flags.rank;
    options.world_size = flags.world_size;
    options.coordinator = flags.coordinator;
  }
  if (!flags.attach.empty()) options.attach = flags.attach;
  options.log_level = LogLevelOf(flags);
  return options;
}

RankLink LinkToLauncher(const RankFlags& flags) { return RankLink(flags.launched); }

RankLauncher::Options LauncherOptions(const RankFlags& flags, const std::string& job) {
  RankLauncher::Options options;
  options.services.job = job;
  options.services.world_size = flags.ranks;
  options.services.coordinator_binary = flags.coordinator_binary;
  options.services.server_binary = flags.server_binary;
  options.services.log_level = LogLevelOf(flags);
  options.arguments = flags.arguments;
  return options;
}

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace optshard
