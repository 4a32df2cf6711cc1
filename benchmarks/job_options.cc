#include "benchmarks/job_options.h"

#include <stdexcept>
#include <string>

#include "absl/flags/flag.h"
#include "common/gradient_mode.h"

ABSL_FLAG(int, rank, 0, "this process's rank");
ABSL_FLAG(int, world_size, 1, "number of ranks");
ABSL_FLAG(std::string, plane, "auto", "the data plane: gloo, shm or auto");
ABSL_FLAG(std::string, attach, "embedded", "where the shard owner runs: embedded or unix:PATH");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT of the coordinator");
ABSL_FLAG(std::string, embedded_coordinator, "", "HOST:PORT at which rank 0 runs the coordinator");
ABSL_FLAG(std::string, gradients, "reduce", "averaged: they are; reduce: by the service");
ABSL_FLAG(bool, share_parameters, false, "one copy of the parameters for all ranks");
ABSL_FLAG(std::string, bucket_view, "auto", "parameters_as_bucket_view: auto, on or off");
ABSL_FLAG(int, threads, 1, "of the update, a rank; 0: the default, the rank's share of the CPUs");

namespace optshard {

ShardedOptimizerOptions JobOptions() {
  ShardedOptimizerOptions options;
  options.job = "benchmark";
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.embedded_coordinator = absl::GetFlag(FLAGS_embedded_coordinator);
  options.attach = absl::GetFlag(FLAGS_attach);
  options.plane = absl::GetFlag(FLAGS_plane);
  options.share_parameters = absl::GetFlag(FLAGS_share_parameters);
  const std::string gradients = absl::GetFlag(FLAGS_gradients);
  if (gradients != NameOf(GradientMode::kAveraged) && gradients != NameOf(GradientMode::kReduce)) {
    throw std::invalid_argument("--gradients=\"" + gradients + "\": averaged or reduce");
  }
  options.gradient_mode =
      gradients == NameOf(GradientMode::kReduce) ? GradientMode::kReduce : GradientMode::kAveraged;
  const absl::StatusOr<BucketView> view = ParseBucketView(absl::GetFlag(FLAGS_bucket_view));
  if (!view.ok()) throw std::invalid_argument(std::string(view.status().message()));
  options.parameters_as_bucket_view = *view;
  options.threads = absl::GetFlag(FLAGS_threads);
  return options;
}

}  // namespace optshard
