#include "server/node/dashed_flags.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

std::vector<std::string> Underscored(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  UnderscoreFlags(static_cast<int>(argv.size()), argv.data());
  return arguments;
}

TEST(DashedFlags_Names_GetUnderscores, AndValuesStay) {
  EXPECT_EQ(
      Underscored({"a-program", "--node-ranks=0-3", "-memory-limit", "8-GiB", "--x"}),
      (std::vector<std::string>{"a-program", "--node_ranks=0-3", "-memory_limit", "8-GiB", "--x"}));
  EXPECT_EQ(Underscored({"p", "--", "--node-ranks"}),
            (std::vector<std::string>{"p", "--", "--node-ranks"}));
}

}  // namespace
}  // namespace optshard
