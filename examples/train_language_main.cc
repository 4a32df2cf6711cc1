// Trains a small language model, with the optimizer state sharded and in the format that is asked
// for, and shows the loss on text that it was not trained on.
//
// By itself it starts a coordinator and the ranks. With --coordinator, --rank and --world-size, or
// with torchrun's variables, it acts as one rank.
#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"
#include "common/cli/command_line.h"
#include "examples/language_model.h"
#include "examples/language_text.h"
#include "examples/rank_launcher.h"
#include "examples/rank_link.h"
#include "examples/rank_main.h"

namespace optshard {
namespace {

constexpr char kJob[] = "language";
constexpr absl::Duration kTogether = absl::Hours(24);

struct Flags {
  int steps = 1000;
  int batch_size = 16;
  int report_every = 50;
  std::string rule = "adamw";
  double lr = 1e-3;
  uint64_t seed = 1;
  std::string dtype = "float32";
  std::string master_weights = "none";
  std::string state_dtype = "float32";
  std::string text = kLicenceTexts;
  std::string losses;
  RankFlags rank;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-train-language",
       "Trains a small language model on the text of a directory, with the optimizer state sharded "
       "and in the format that is asked for, and shows the loss on text that it was not trained "
       "on. By itself it starts a coordinator and the ranks. With --rank, or under torchrun, it "
       "acts as one rank.",
       {"optshard-train-language",
        "optshard-train-language --dtype=bfloat16 --master-weights=24 "
        "--state-dtype=int8_companded --losses=out/losses.csv"}});
  line.Group("Training");
  line.Add("steps", &flags.steps, "how many").AtLeast(1);
  line.Add("batch-size", &flags.batch_size,
           "pieces of text of a step, of all ranks together; a multiple of the number of ranks")
      .AtLeast(1);
  line.Add("rule", &flags.rule,
           "an element-wise rule for dense gradients; its other options have their defaults");
  line.Add("lr", &flags.lr, "its learning rate");
  line.Add("seed", &flags.seed, "of the model's first values and of the pieces of text");
  line.Group("Formats");
  line.Add("dtype", &flags.dtype, "of the parameters and their gradients")
      .OneOf({"float32", "bfloat16"});
  line.Add("master-weights", &flags.master_weights,
           "bits of the copies of bfloat16 parameters that are updated")
      .OneOf({"none", "24", "32"});
  line.Add("state-dtype", &flags.state_dtype, "how the optimizer's slots are kept")
      .OneOf({"float32", "bfloat16", "int8_dynamic", "int8_companded"});
  line.Group("Files");
  line.Add("text", &flags.text, "a directory; all its files are read").Value("PATH");
  line.Add("report-every", &flags.report_every, "steps from one shown loss to the next").AtLeast(1);
  line.Add("losses", &flags.losses, "where to write the losses for scripts, by step")
      .Value("PATH")
      .Default("none");
  AddRankOptions(line, &flags.rank);
  return line;
}

ShardedOptimizerOptions WithFormats(const Flags& flags, ShardedOptimizerOptions options) {
  options.job = kJob;
  options.policy = PartitionPolicy::kBalanced;
  options.state_dtype = flags.state_dtype;
  options.master_weights = flags.master_weights != "none";
  if (flags.master_weights == "24") options.master_weight_bits = 24;
  options.close_timeout = absl::Seconds(30);
  return options;
}

// The first rank shows the losses, and writes them where they are wanted.
class LossReport {
 public:
  LossReport(const std::string& path, bool shows) : shows_(shows) {
    if (!shows || path.empty()) return;
    const std::filesystem::path file = path;
    if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
    file_.open(file);
    Write("step,loss\n");
  }

  void Add(int step, double loss) {
    if (!shows_) return;
    Print(absl::StrFormat("step %5d   loss %.4f nats a byte\n", step, loss));
    if (file_.is_open()) Write(absl::StrFormat("%d,%.6f\n", step, loss));
  }

 private:
  void Write(const std::string& line) {
    if (file_ << line && file_.flush()) return;
    throw StatusError(absl::UnavailableError("the file of --losses cannot be written"));
  }

  const bool shows_;
  std::ofstream file_;
};

int RunRank(const Flags& flags, const ShardedOptimizerOptions& options) {
  at::set_num_threads(1);  // the ranks share this machine
  const LanguageText text = ValueOrThrow(ReadLanguageText(flags.text));
  const at::Tensor held_out = HeldOutWindows(text, LanguageModel::kContext);
  LanguageModel model(flags.seed);
  if (flags.dtype == "bfloat16") model.to(at::kBFloat16);
  ShardedOptimizer optimizer(model, RuleOptions(flags.rule).Set("lr", flags.lr),
                             WithFormats(flags, options));
  LossReport report(flags.losses, options.rank == 0);
  for (int step = 1; step <= flags.steps; ++step) {
    const at::Tensor batch = RandomWindows(text.train, flags.batch_size, LanguageModel::kContext,
                                           SeedOfStep(flags.seed, step));
    optimizer.zero_grad();
    model.Loss(RowsOfRank(batch, options.rank, options.world_size)).backward();
    optimizer.step();
    if (options.rank == 0 && (step % flags.report_every == 0 || step == flags.steps)) {
      const at::NoGradGuard no_grad;
      report.Add(step, model.Loss(held_out).item<double>());
    }
  }
  if (options.rank == 0) {
    Print(absl::StrCat("Rank 0 keeps ", optimizer.state_bytes(), " bytes of optimizer state.\n"));
  }
  RankLink launcher = LinkToLauncher(flags.rank);
  launcher.Report(absl::StrCat(ParametersChecksum(model.parameters())));
  launcher.WaitForRelease();
  optimizer.Close();
  return EXIT_SUCCESS;
}

int RunJob(const Flags& flags) {
  const absl::Time deadline = absl::Now() + kTogether;
  const std::unique_ptr<RankLauncher> launcher =
      ValueOrThrow(RankLauncher::Start(LauncherOptions(flags.rank, kJob)));
  const std::vector<std::string> checksums = ValueOrThrow(launcher->WaitForReports(deadline));
  ThrowIfError(launcher->Finish(deadline));
  for (const std::string& checksum : checksums) {
    if (checksum != checksums[0]) {
      throw StatusError(absl::DataLossError("the ranks ended with different parameters"));
    }
  }
  Print(absl::StrCat("All ", checksums.size(), " ranks ended with the same parameters.\n"));
  return EXIT_SUCCESS;
}

int Main(const Flags& flags) {
  const bool is_rank = ActsAsRank(flags.rank);
  const ShardedOptimizerOptions options =
      is_rank ? RankOptions(flags.rank) : ShardedOptimizerOptions();
  const int ranks = is_rank ? options.world_size : flags.rank.ranks;
  if (flags.batch_size % ranks != 0) {
    throw StatusError(absl::InvalidArgumentError(absl::StrCat(
        "--batch-size=", flags.batch_size, " is not a multiple of the number of ranks, ", ranks)));
  }
  return is_rank ? RunRank(flags, options) : RunJob(flags);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  return optshard::RankMain(argc, argv, optshard::CommandLineOf(flags), &flags.rank,
                            [&flags] { return optshard::Main(flags); });
}
