// The options of a benchmark's program that is one rank of a job of ours.
#ifndef OPTSHARD_BENCHMARKS_JOB_OPTIONS_H_
#define OPTSHARD_BENCHMARKS_JOB_OPTIONS_H_

#include <string>

#include "client/sharded_optimizer_options.h"
#include "common/cli/command_line.h"

namespace optshard {

// Values of the options; AddJobOptions says what each means.
struct JobFlags {
  int rank = 0;
  int world_size = 1;
  std::string plane = "auto";
  std::string attach = "embedded";
  std::string coordinator;
  std::string embedded_coordinator;
  std::string gradients = "reduce";
  bool share_parameters = false;
  std::string bucket_view = "auto";
  int threads = 1;
  std::string node;
  std::string interface;
};

void AddJobOptions(CommandLine& line, JobFlags* flags);

// The flags as options of an optimizer; what no flag says has its default.
ShardedOptimizerOptions JobOptions(const JobFlags& flags);

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_JOB_OPTIONS_H_
