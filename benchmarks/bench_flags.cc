#include "benchmarks/bench_flags.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace optshard {

void ParseBenchFlags(int argc, char** argv, const std::string& usage) {
  absl::SetProgramUsageMessage(usage);
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "benchmarks/");
  };
  config.contains_helpshort_flags = config.contains_help_flags;
  absl::SetFlagsUsageConfig(config);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() == 1) return;
  std::fprintf(stderr, "%s: unexpected argument %s; see --help\n", rest[0], rest[1]);
  std::exit(2);
}

}  // namespace optshard
