// What the examples' mains share: options by which a program starts its own ranks or acts as one.
#ifndef OPTSHARD_EXAMPLES_RANK_MAIN_H_
#define OPTSHARD_EXAMPLES_RANK_MAIN_H_

#include <functional>
#include <string>
#include <vector>

#include "client/sharded_optimizer_options.h"
#include "common/cli/command_line.h"
#include "examples/rank_launcher.h"
#include "examples/rank_link.h"

namespace optshard {

struct RankFlags {
  int ranks = 2;
  std::string coordinator_binary;
  std::string server_binary;
  std::string coordinator;
  std::string attach;
  int rank = -1;
  int world_size = 1;
  bool launched = false;
  std::string log_level;  // empty: OPTSHARD_LOG_LEVEL of the environment, else "warning"
  std::vector<std::string> arguments;  // all that the program was given
};

// Groups of the command line, after those of the program itself.
void AddRankOptions(CommandLine& line, RankFlags* flags);

// Parses the command line, which sets the targets of `line`, and returns main's value of `run`. An
// exception is printed, with the rank, and gives 1.
int RankMain(int argc, char** argv, CommandLine line, RankFlags* flags,
             const std::function<int()>& run);

// Whether this process is one rank: --rank or torchrun's RANK says so.
bool ActsAsRank(const RankFlags& flags);

// Of the rank that this process is. Throws StatusError.
ShardedOptimizerOptions RankOptions(const RankFlags& flags);

RankLink LinkToLauncher(const RankFlags& flags);

// To start ranks with the same arguments.
RankLauncher::Options LauncherOptions(const RankFlags& flags, const std::string& job);

// At once, also into a pipe.
void Print(const std::string& text);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_MAIN_H_
