// What the mains of the examples share: the options with which a program starts ranks or acts as
// one rank. The functions are bound to the main thread.
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

// Values of the options; AddRankOptions says what each means.
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
  std::vector<std::string> arguments;  // the whole command line, without the program's name
};

// Adds the options, in groups of their own. Call it after the program has added its own options.
void AddRankOptions(CommandLine& line, RankFlags* flags);

// Parses the command line into the targets of `line` and returns the exit code that `run` returns.
// An exception of `run` is printed with the rank, and the exit code is 1.
int RankMain(int argc, char** argv, CommandLine line, RankFlags* flags,
             const std::function<int()>& run);

// Whether this process is one rank, which --rank or torchrun's variable RANK says.
bool ActsAsRank(const RankFlags& flags);

// The options of the rank that this process is. Throws StatusError where torchrun's variables are
// not valid.
ShardedOptimizerOptions RankOptions(const RankFlags& flags);

// The link to the process that started this rank.
RankLink LinkToLauncher(const RankFlags& flags);

// Options to start ranks with the arguments of this process.
RankLauncher::Options LauncherOptions(const RankFlags& flags, const std::string& job);

// Writes to stdout and flushes it, so that the text also reaches a pipe at once.
void Print(const std::string& text);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_MAIN_H_
