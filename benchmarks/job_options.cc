#include "benchmarks/job_options.h"

#include "client/status_error.h"
#include "common/gradient_mode.h"

namespace optshard {

void AddJobOptions(CommandLine& line, JobFlags* flags) {
  line.Group("Job");
  line.Add("rank", &flags->rank, "this process's rank").AtLeast(0);
  line.Add("world-size", &flags->world_size, "number of ranks").AtLeast(1);
  line.Add("plane", &flags->plane, "the data plane").OneOf({"auto", "shm", "gloo"});
  line.Add("attach", &flags->attach, "where the shard owner runs: embedded or unix:PATH")
      .Value("WHERE");
  line.Add("coordinator", &flags->coordinator, "address of the coordinator").Value("HOST:PORT");
  line.Add("embedded-coordinator", &flags->embedded_coordinator,
           "address at which rank 0 runs the coordinator")
      .Value("HOST:PORT");
  line.Add("gradients", &flags->gradients, "averaged by the trainers, or reduced by the service")
      .OneOf({"averaged", "reduce"});
  line.Add("share-parameters", &flags->share_parameters,
           "one copy of the parameters for all ranks");
  line.Add("bucket-view", &flags->bucket_view, "parameters_as_bucket_view")
      .OneOf({"auto", "on", "off"});
  line.Add("threads", &flags->threads,
           "of a rank's update; 0 is the default of the optimizer, the rank's share of the CPUs")
      .AtLeast(0);
  line.Add("node", &flags->node, "name of the rank's node").Default("the host's name");
  line.Add("interface", &flags->interface, "the network interface between hosts")
      .Default("the one that reaches the coordinator");
}

ShardedOptimizerOptions JobOptions(const JobFlags& flags) {
  ShardedOptimizerOptions options;
  options.job = "benchmark";
  options.rank = flags.rank;
  options.world_size = flags.world_size;
  options.coordinator = flags.coordinator;
  options.embedded_coordinator = flags.embedded_coordinator;
  options.attach = flags.attach;
  options.plane = flags.plane;
  options.share_parameters = flags.share_parameters;
  options.gradient_mode =
      flags.gradients == "reduce" ? GradientMode::kReduce : GradientMode::kAveraged;
  options.parameters_as_bucket_view = ValueOrThrow(ParseBucketView(flags.bucket_view));
  options.threads = flags.threads;
  options.node = flags.node;
  options.interface = flags.interface;
  return options;
}

}  // namespace optshard
