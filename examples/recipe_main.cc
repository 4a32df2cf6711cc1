// PyTorch's own example of what a sharded optimizer saves: 20 x Linear(2000, 2000), Adam with
// lr 0.01, two ranks, one step, with and without sharding. Shows the measured memory, and that both
// runs end with the same parameters.
//
// By itself it starts a coordinator and the ranks. With --coordinator, --rank and --world-size, or
// with torchrun's variables, it acts as one rank, in the mode "sharded" or "unsharded".
#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"
#include "common/cli/command_line.h"
#include "examples/process_memory.h"
#include "examples/rank_launcher.h"
#include "examples/rank_link.h"
#include "examples/rank_main.h"
#include "examples/recipe_model.h"
#include "examples/recipe_report.h"

namespace optshard {
namespace {

constexpr char kJob[] = "recipe";
constexpr char kSharded[] = "sharded";
constexpr char kUnsharded[] = "unsharded";
constexpr char kCompare[] = "compare";
constexpr uint64_t kModelSeed = 0;
constexpr uint64_t kDataSeed = 1;  // of rank 0; each rank adds its number
constexpr absl::Duration kTogether = absl::Minutes(10);

struct Flags {
  std::string mode = kCompare;
  std::string json;
  int layers = 20;
  int width = 2000;
  int rows = 20;
  int steps = 1;
  double lr = 0.01;
  std::string bucket_view = "auto";
  RankFlags rank;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-recipe",
       "Measures what sharding the optimizer saves, by PyTorch's own example of it: 20 x "
       "Linear(2000, 2000) with Adam. By itself it starts a coordinator and the ranks, first with "
       "sharded optimizer state, then without. With --rank, or under torchrun, it acts as one "
       "rank.",
       {"optshard-recipe", "optshard-recipe --mode=sharded --ranks=4 --steps=3"}});
  line.Group("Measuring");
  line.Add("mode", &flags.mode, "compare runs first the one and then the other; not for one rank")
      .OneOf({kSharded, kUnsharded, kCompare});
  line.Add("steps", &flags.steps, "of the optimizer").AtLeast(1);
  line.Add("json", &flags.json, "where to write the measurements for scripts")
      .Value("PATH")
      .Default("none");
  line.Group("Model");
  line.Add("layers", &flags.layers, "how many").AtLeast(1);
  line.Add("width", &flags.width, "inputs and outputs of a layer").AtLeast(1);
  line.Add("rows", &flags.rows, "of a rank's random inputs and targets").AtLeast(1);
  line.Add("lr", &flags.lr, "Adam's learning rate");
  line.Add("bucket-view", &flags.bucket_view,
           "parameters_as_bucket_view: the parameters and gradients are views of flat memory")
      .OneOf({"auto", "on", "off"});
  AddRankOptions(line, &flags.rank);
  return line;
}

RecipeReport MeasureRank(const Flags& flags, ShardedOptimizerOptions options, RankLink& launcher) {
  const std::string& mode = flags.mode;
  at::set_num_threads(1);  // the ranks share this machine
  options.job = kJob;
  options.policy = mode == kUnsharded ? PartitionPolicy::kReplicated : PartitionPolicy::kGreedy;
  options.parameters_as_bucket_view = ValueOrThrow(ParseBucketView(flags.bucket_view));
  options.close_timeout = absl::Seconds(30);

  RecipeReport report;
  report.mode = mode;
  report.rank = options.rank;
  RecipeModel model(flags.layers, flags.width, kModelSeed);
  report.model_built_bytes = ResidentBytes();
  ShardedOptimizer optimizer(model, RuleOptions("adam").Set("lr", flags.lr), options);
  for (int step = 0; step < flags.steps; ++step) {
    optimizer.zero_grad();
    model.Loss(flags.rows, kDataSeed + options.rank).backward();
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

std::vector<RecipeReport> RunJob(const Flags& flags, const std::string& mode) {
  const absl::Time deadline = absl::Now() + kTogether;
  RankLauncher::Options options = LauncherOptions(flags.rank, kJob);
  options.arguments.push_back(absl::StrCat("--mode=", mode));
  Print(absl::StrCat(options.services.world_size, " ranks, ", mode, " ...\n"));
  const std::unique_ptr<RankLauncher> launcher = ValueOrThrow(RankLauncher::Start(options));
  std::vector<RecipeReport> reports;
  for (const std::string& text : ValueOrThrow(launcher->WaitForReports(deadline))) {
    reports.push_back(ValueOrThrow(RecipeReportFromJson(text)));
  }
  ThrowIfError(launcher->Finish(deadline));
  return reports;
}

int Show(const Flags& flags, const std::vector<RecipeReport>& reports) {
  Print(RecipeTable(reports));
  const bool equal = SumsEqual(reports);
  if (reports.size() > 1) {
    Print(equal ? "All sums are the same.\n" : "THE PARAMETERS DIFFER.\n");
  }
  const std::filesystem::path json = flags.json;
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

int Main(const Flags& flags) {
  if (ActsAsRank(flags.rank)) {
    if (flags.mode == kCompare) {
      throw StatusError(absl::InvalidArgumentError(
          absl::StrCat("--mode=", kCompare, " is not for one rank: expected --mode=", kSharded,
                       " or --mode=", kUnsharded)));
    }
    RankLink launcher = LinkToLauncher(flags.rank);
    const RecipeReport report = MeasureRank(flags, RankOptions(flags.rank), launcher);
    return launcher.launched() ? EXIT_SUCCESS : Show(flags, {report});
  }
  std::vector<RecipeReport> reports;
  for (const std::string& mode : flags.mode == kCompare
                                     ? std::vector<std::string>{kSharded, kUnsharded}
                                     : std::vector<std::string>{flags.mode}) {
    for (RecipeReport& report : RunJob(flags, mode)) reports.push_back(std::move(report));
  }
  return Show(flags, reports);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  return optshard::RankMain(argc, argv, optshard::CommandLineOf(flags), &flags.rank,
                            [&flags] { return optshard::Main(flags); });
}
