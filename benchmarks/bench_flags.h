// The command lines of the benchmarks' programs, which run_bench.py starts.
#ifndef OPTSHARD_BENCHMARKS_BENCH_FLAGS_H_
#define OPTSHARD_BENCHMARKS_BENCH_FLAGS_H_

#include <string>

namespace optshard {

// Sets Abseil's flags. --help lists those of all benchmark sources in the program, and ends it:
// Abseil by itself lists only those of a source that has the program's name. Ends the program with
// 2 where an argument is no flag.
void ParseBenchFlags(int argc, char** argv, const std::string& usage);

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_BENCH_FLAGS_H_
