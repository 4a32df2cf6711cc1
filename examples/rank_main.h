// What the examples' mains share: flags by which a binary starts its own ranks or acts as one.
#ifndef OPTSHARD_EXAMPLES_RANK_MAIN_H_
#define OPTSHARD_EXAMPLES_RANK_MAIN_H_

#include <functional>
#include <string>
#include <vector>

#include "client/sharded_optimizer_options.h"
#include "examples/rank_launcher.h"
#include "examples/rank_link.h"

namespace optshard {

// Parses the flags and returns main's value of `run`, which is given all arguments; an exception is
// printed, with the rank, and gives 1.
int RankMain(int argc, char** argv, const std::string& usage,
             const std::function<int(const std::vector<std::string>& arguments)>& run);

// Whether this process is one rank: --rank or torchrun's RANK says so.
bool ActsAsRank();

// Of the rank that this process is. Throws StatusError.
ShardedOptimizerOptions RankOptions();

RankLink LinkToLauncher();

// To start ranks with the same arguments.
RankLauncher::Options LauncherOptions(const std::string& job,
                                      const std::vector<std::string>& arguments);

// At once, also into a pipe.
void Print(const std::string& text);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_MAIN_H_
