// PyTorch's own example of what a sharded optimizer saves: 20 x Linear(2000, 2000), Adam with
// lr 0.01, two ranks, one step, with and without sharding. Shows the measured memory, and that the
// parameters come out the same.
//
// By itself it starts a coordinator and the ranks. With --coordinator, --rank and --world_size, or
// with torchrun's variables, it acts as one rank, in the mode "sharded" or "unsharded".
#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"
#include "examples/process_memory.h"
#include "examples/rank_launcher.h"
#include "examples/rank_link.h"
#include "examples/rank_main.h"
#include "examples/recipe_model.h"
#include "examples/recipe_report.h"

ABSL_FLAG(std::string, mode, "compare", "sharded, unsharded, or compare: the one, then the other");
ABSL_FLAG(std::string, json, "", "where to write the measurements for scripts");
ABSL_FLAG(int, layers, 20, "of the model");
ABSL_FLAG(int, width, 2000, "of a layer");
ABSL_FLAG(int, rows, 20, "of a rank's random inputs and targets");
ABSL_FLAG(int, steps, 1, "of the optimizer");
ABSL_FLAG(double, lr, 0.01, "Adam's learning rate");
ABSL_FLAG(bool, bucket_view, true, "parameters_as_bucket_view");

namespace optshard {
namespace {

constexpr char kJob[] = "recipe";
constexpr char kSharded[] = "sharded";
constexpr char kUnsharded[] = "unsharded";
constexpr char kCompare[] = "compare";
constexpr uint64_t kModelSeed = 0;
constexpr uint64_t kDataSeed = 1;  // plus the rank's number
constexpr absl::Duration kTogether = absl::Minutes(10);

RecipeReport MeasureRank(ShardedOptimizerOptions options, const std::string& mode,
                         RankLink& launcher) {
  at::set_num_threads(1);  // the ranks share this machine
  options.job = kJob;
  options.policy = mode == kUnsharded ? PartitionPolicy::kReplicated : PartitionPolicy::kGreedy;
  options.parameters_as_bucket_view = absl::GetFlag(FLAGS_bucket_view);
  options.close_timeout = absl::Seconds(30);

  RecipeReport report;
  report.mode = mode;
  report.rank = options.rank;
  RecipeModel model(absl::GetFlag(FLAGS_layers), absl::GetFlag(FLAGS_width), kModelSeed);
  report.model_built_bytes = ResidentBytes();
  ShardedOptimizer optimizer(model, RuleOptions("adam").Set("lr", absl::GetFlag(FLAGS_lr)),
                             options);
  for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    optimizer.zero_grad();
    model.Loss(absl::GetFlag(FLAGS_rows), kDataSeed + options.rank).backward();
    report.before_step_bytes = ResidentBytes();
    const absl::Time start = absl::Now();
    optimizer.step();
    report.step_ms = absl::ToDoubleMilliseconds(absl::Now() - start);
    report.after_step_bytes = ResidentBytes();
  }
  report.peak_bytes = PeakResidentBytes();
  report.state_bytes = optimizer.state_bytes();
  report.parameter_sum = model.Sum();
  report.parameter_checksum = ParametersChecksum(model.parameters());
  launcher.Report(ToJson(report));
  launcher.WaitForRelease();
  optimizer.Close();
  return report;
}

std::vector<RecipeReport> RunJob(std::vector<std::string> arguments, const std::string& mode) {
  const absl::Time deadline = absl::Now() + kTogether;
  arguments.push_back(absl::StrCat("--mode=", mode));
  const RankLauncher::Options options = LauncherOptions(kJob, arguments);
  Print(absl::StrCat(options.services.world_size, " ranks, ", mode, " ...\n"));
  const std::unique_ptr<RankLauncher> launcher = ValueOrThrow(RankLauncher::Start(options));
  std::vector<RecipeReport> reports;
  for (const std::string& text : ValueOrThrow(launcher->WaitForReports(deadline))) {
    reports.push_back(ValueOrThrow(RecipeReportFromJson(text)));
  }
  ThrowIfError(launcher->Finish(deadline));
  return reports;
}

int Show(const std::vector<RecipeReport>& reports) {
  Print(RecipeTable(reports));
  const bool equal = SumsEqual(reports);
  if (reports.size() > 1) {
    Print(equal ? "All sums are the same.\n" : "THE PARAMETERS DIFFER.\n");
  }
  const std::filesystem::path json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) {
    if (json.has_parent_path()) std::filesystem::create_directories(json.parent_path());
    std::ofstream file(json);
    file << RecipeSummaryJson(reports);
    if (!file.flush()) {
      throw StatusError(absl::UnavailableError(absl::StrCat(json.string(), " cannot be written")));
    }
  }
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(const std::vector<std::string>& arguments) {
  const std::string mode = absl::GetFlag(FLAGS_mode);
  if (mode != kSharded && mode != kUnsharded && (mode != kCompare || ActsAsRank())) {
    throw StatusError(absl::InvalidArgumentError(
        absl::StrCat("--mode=\"", mode, "\": expected \"", kSharded, "\" or \"", kUnsharded, "\"",
                     ActsAsRank() ? " of one rank" : absl::StrCat(", or \"", kCompare, "\""))));
  }
  if (ActsAsRank()) {
    RankLink launcher = LinkToLauncher();
    const RecipeReport report = MeasureRank(RankOptions(), mode, launcher);
    return launcher.launched() ? EXIT_SUCCESS : Show({report});
  }
  std::vector<RecipeReport> reports;
  for (const std::string& each : mode == kCompare ? std::vector<std::string>{kSharded, kUnsharded}
                                                  : std::vector<std::string>{mode}) {
    for (RecipeReport& report : RunJob(arguments, each)) reports.push_back(std::move(report));
  }
  return Show(reports);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RankMain(
      argc, argv, "Measures what sharding the optimizer saves, on 20 x Linear(2000, 2000).",
      optshard::Main);
}
