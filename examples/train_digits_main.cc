// Trains a small classifier of handwritten digits twice on the same ranks, with the optimizer state
// sharded and unsharded, and shows that both runs end with the same parameters, to the byte.
//
// By itself it starts a coordinator, a shard server and the ranks. The sharded run's state is kept
// by the server. Half-way, the last rank's process ends between two steps, and a new process takes
// its place and goes on. Somewhat later a checkpoint is saved. Once all is done, all processes are
// ended, and others, of another number of ranks, go on from the checkpoint to the same end. With
// --coordinator, --rank and --world-size, or with torchrun's variables, the program acts as one
// rank.
#include <ATen/Parallel.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "client/checkpoint_directory.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"
#include "common/cli/command_line.h"
#include "common/process/scratch_directory.h"
#include "examples/digits_data.h"
#include "examples/digits_model.h"
#include "examples/digits_report.h"
#include "examples/digits_training.h"
#include "examples/rank_launcher.h"
#include "examples/rank_link.h"
#include "examples/rank_main.h"
#include "examples/shard_inspection_rpc.h"

namespace optshard {
namespace {

struct Flags {
  int epochs = 12;
  int batch_size = 64;
  double lr = 2e-3;
  uint64_t seed = 20240229;
  std::string policy = "balanced";
  std::string state_dtype = "float32";
  bool shard_server = true;
  int replace_after = 120;
  int save_after = 150;
  int resume_ranks = 3;
  std::string checkpoints;
  bool resume = false;
  bool successor = false;
  std::string data;
  std::string json;
  RankFlags rank;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-train-digits",
       "Trains a small classifier of handwritten digits twice, with the optimizer state sharded "
       "and unsharded, and shows that all bytes of the parameters come out the same. By itself it "
       "starts a coordinator, a shard server and the ranks; half-way through the sharded run it "
       "replaces the last rank's process by a new one, which goes on. It saves a checkpoint, ends "
       "all processes, and goes on from it at another number of ranks. With --rank, or under "
       "torchrun, it acts as one rank.",
       {"optshard-train-digits", "optshard-train-digits --ranks=4 --epochs=6 --json=out/demo.json",
        "optshard-train-digits --no-shard-server --policy=greedy"}});
  line.Group("Training");
  line.Add("epochs", &flags.epochs, "how often to go through the digits").AtLeast(1);
  line.Add("batch-size", &flags.batch_size,
           "digits of a step, of all ranks together; a multiple of the number of ranks")
      .AtLeast(1);
  line.Add("lr", &flags.lr, "Adam's learning rate");
  line.Add("seed", &flags.seed, "of the model's first values, the held-out digits and the order");
  line.Group("Sharding");
  line.Add("policy", &flags.policy, "how the sharded run's parameters are divided")
      .OneOf({"greedy", "greedy_in_order", "balanced", "replicated"});
  line.Add("state-dtype", &flags.state_dtype, "how both runs keep the optimizer's slots")
      .OneOf({"float32", "bfloat16", "int8_dynamic", "int8_companded"});
  line.Add("shard-server", &flags.shard_server,
           "keep the sharded run's state in a shard server, not in the ranks");
  line.Add("replace-after", &flags.replace_after,
           "step of the sharded run after which the last rank's process is replaced; 0 is never. "
           "Only with a shard server")
      .AtLeast(0);
  line.Add("save-after", &flags.save_after,
           "step of the sharded run after which a checkpoint is saved, from which other ranks go "
           "on in the end; 0 is never")
      .AtLeast(0);
  line.Add("resume-ranks", &flags.resume_ranks, "how many those are").AtLeast(1);
  line.Group("Files");
  line.Add("data", &flags.data, "digits.csv.gz").Value("PATH").Default("where the build puts it");
  line.Add("json", &flags.json, "where to write the results for scripts")
      .Value("PATH")
      .Default("none");
  line.Add("checkpoints", &flags.checkpoints,
           "where to save, set by the process that started this rank")
      .Hidden();
  line.Add("resume", &flags.resume, "set where this rank goes on from there").Hidden();
  line.Add("successor", &flags.successor, "set by the process that started this rank").Hidden();
  AddRankOptions(line, &flags.rank);
  return line;
}

constexpr char kJob[] = "digits";
constexpr char kSharded[] = "sharded";
constexpr char kUnsharded[] = "unsharded";
constexpr absl::Duration kInspection = absl::Seconds(5);
constexpr absl::Duration kTogether = absl::Minutes(10);

DigitsSplit LoadDigits(const Flags& flags) {
  return Split(ValueOrThrow(ReadDigits(flags.data.empty() ? DigitsPath() : flags.data)),
               flags.seed);
}

DigitsTraining TrainingOf(const Flags& flags, int rank, int world_size) {
  DigitsTraining training;
  training.epochs = flags.epochs;
  training.batch_size = flags.batch_size;
  training.seed = flags.seed;
  training.rank = rank;
  training.world_size = world_size;
  return training;
}

// Trains and prints the progress. Returns the accuracy on the held-out digits.
double Train(const DigitsTraining& training, const DigitsSplit& digits, DigitsModel& model,
             torch::optim::Optimizer& optimizer, const std::string& name,
             const std::function<void(int64_t finished_steps)>& step_ended = nullptr) {
  absl::Time before = absl::Now();
  double accuracy = 0;
  DigitsCallbacks callbacks;
  callbacks.step_ended = step_ended;
  callbacks.epoch_ended = [&](const DigitsProgress& progress) {
    accuracy = model.Accuracy(digits.held_out);
    if (training.rank == 0) {
      Print(absl::StrFormat("%-10s epoch %2d of %d   loss %.4f   accuracy %6.2f %%   %.2f s\n",
                            name, progress.epoch, training.epochs, progress.loss, 100 * accuracy,
                            absl::ToDoubleSeconds(absl::Now() - before)));
    }
    before = absl::Now();
  };
  TrainDigits(training, digits.train, model, optimizer, callbacks);
  return accuracy;
}

// Ends between two steps as in a crash, without leaving the job.
void EndToBeReplaced(int rank, int64_t finished_steps) {
  Print(absl::StrFormat("%-10s rank %d, process %d, ends after step %d\n", kSharded, rank, getpid(),
                        finished_steps));
  std::_Exit(RankLink::kReplaceMe);
}

// The callback after each step of the sharded run; null where nothing is to be done.
std::function<void(int64_t)> AfterShardedStep(const Flags& flags,
                                              const ShardedOptimizerOptions& options) {
  const int64_t last = flags.replace_after;
  if (!LinkToLauncher(flags.rank).launched() || options.attach == "embedded" || last == 0 ||
      options.rank != options.world_size - 1 || flags.successor || flags.resume) {
    return nullptr;
  }
  return [last, rank = options.rank](int64_t finished_steps) {
    if (finished_steps == last) EndToBeReplaced(rank, finished_steps);
  };
}

DigitsRun TrainWithTorch(const Flags& flags, const DigitsSplit& digits) {
  DigitsModel model(flags.seed);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(flags.lr));
  DigitsRun run;
  run.accuracy = Train(TrainingOf(flags, 0, 1), digits, model, optimizer, "torch");
  run.checksum = ParametersChecksum(model.parameters());
  int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    bytes += static_cast<int64_t>(adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes());
  }
  run.state_bytes = {bytes};
  return run;
}

std::vector<int64_t> StateBytesOfAll(const ShardedOptimizer& optimizer) {
  std::vector<int64_t> bytes;
  const std::vector<std::string> addresses = optimizer.owner_addresses();
  for (int rank = 0; rank < static_cast<int>(addresses.size()); ++rank) {
    const OwnerName owner = {addresses[rank], optimizer.options().optimizer, rank};
    bytes.push_back(ValueOrThrow(StateBytesOf(owner, kInspection)));
  }
  return bytes;
}

// A sharded or unsharded run. It keeps its optimizer alive after the training, so that the shard
// owner can be inspected.
class Run {
 public:
  Run(const Flags& flags, const ShardedOptimizerOptions& options, const DigitsSplit& digits,
      const std::function<void(int64_t finished_steps)>& step_ended = nullptr)
      : model_(flags.seed), optimizer_(model_, torch::optim::AdamOptions(flags.lr), options) {
    if (flags.resume) optimizer_.load_checkpoint(flags.checkpoints);
    DigitsTraining training = TrainingOf(flags, options.rank, options.world_size);
    training.finished_steps = static_cast<int64_t>(optimizer_.finished_step());
    if (training.finished_steps > 0) {
      Print(absl::StrFormat("%-10s rank %d, process %d, goes on after step %d\n", options.optimizer,
                            options.rank, getpid(), training.finished_steps));
    }
    const bool saves = !flags.resume && !flags.checkpoints.empty() && flags.save_after > 0 &&
                       options.optimizer == kSharded;
    const auto ended = [&](int64_t finished_steps) {
      if (saves && finished_steps == flags.save_after) {
        optimizer_.save_checkpoint(flags.checkpoints);
      }
      if (step_ended) step_ended(finished_steps);
    };
    result_.accuracy = Train(training, digits, model_, optimizer_, options.optimizer, ended);
    const std::string saved = optimizer_.wait_checkpoint();
    if (!saved.empty() && options.rank == 0) {
      Print(absl::StrFormat("%-10s saved %s\n", options.optimizer, saved));
    }
    result_.checksum = ParametersChecksum(model_.parameters());
    if (options.rank == 0) result_.state_bytes = StateBytesOfAll(optimizer_);
  }

  const DigitsRun& result() const { return result_; }
  ShardedOptimizer& optimizer() { return optimizer_; }

 private:
  DigitsModel model_;
  ShardedOptimizer optimizer_;
  DigitsRun result_;
};

void Show(const std::vector<DigitsReport>& reports) {
  Print("\n" + DigitsTable(reports));
  // The owner of the last rank, which runs in another process where this one has started the ranks.
  const std::vector<std::string>& addresses = reports[0].owner_addresses;
  const OwnerName owner = {addresses.back(), kSharded, static_cast<int>(addresses.size()) - 1};
  Print(absl::StrCat("\nThe shard owner of rank ", owner.rank, " at ", owner.address,
                     ", asked over gRPC:\n"));
  for (const std::string& line : ValueOrThrow(ListParametersOf(owner, kInspection))) {
    Print(absl::StrCat("  ", line, "\n"));
  }
}

// `resumed`: where it went on from a checkpoint.
void WriteJson(const Flags& flags, const std::vector<DigitsReport>& reports,
               const absl::optional<DigitsRun>& resumed) {
  const std::filesystem::path json = flags.json;
  if (json.empty()) return;
  if (json.has_parent_path()) std::filesystem::create_directories(json.parent_path());
  std::ofstream file(json);
  file << DigitsSummaryJson(reports, resumed);
  if (!file.flush()) {
    throw StatusError(absl::UnavailableError(absl::StrCat(json.string(), " cannot be written")));
  }
}

int RunRank(const Flags& flags, ShardedOptimizerOptions options) {
  at::set_num_threads(1);  // the ranks share this machine
  options.job = kJob;
  options.close_timeout = absl::Seconds(30);
  const DigitsSplit digits = LoadDigits(flags);
  options.optimizer = kSharded;
  options.state_dtype = flags.state_dtype;
  options.policy = ValueOrThrow(ParsePartitionPolicy(flags.policy));
  Run sharded(flags, options, digits, AfterShardedStep(flags, options));
  RankLink launcher = LinkToLauncher(flags.rank);
  if (flags.resume) {
    DigitsReport resumed;
    resumed.rank = options.rank;
    resumed.sharded = sharded.result();
    launcher.Report(ToJson(resumed));
    launcher.WaitForRelease();
    sharded.optimizer().Close();
    return EXIT_SUCCESS;
  }
  options.optimizer = kUnsharded;
  options.attach = "embedded";
  options.policy = PartitionPolicy::kReplicated;
  Run unsharded(flags, options, digits);

  DigitsReport report;
  report.rank = options.rank;
  report.sharded = sharded.result();
  report.unsharded = unsharded.result();
  report.owner_addresses = sharded.optimizer().owner_addresses();
  if (options.rank == 0) report.torch = TrainWithTorch(flags, digits);

  if (!launcher.launched() && options.rank == 0) {
    Show({report});
    WriteJson(flags, {report}, absl::nullopt);
  }
  launcher.Report(ToJson(report));
  launcher.WaitForRelease();
  unsharded.optimizer().Close();
  sharded.optimizer().Close();
  return ParametersEqual({report}) ? EXIT_SUCCESS : EXIT_FAILURE;
}

std::vector<DigitsReport> ReportsOf(RankLauncher& launcher, absl::Time deadline) {
  std::vector<DigitsReport> reports;
  for (const std::string& text : ValueOrThrow(launcher.WaitForReports(deadline))) {
    reports.push_back(ValueOrThrow(DigitsReportFromJson(text)));
  }
  return reports;
}

RankLauncher::Options JobOptions(const Flags& flags, const std::string& checkpoints) {
  RankLauncher::Options options = LauncherOptions(flags.rank, kJob);
  options.services.shard_server = flags.shard_server;
  options.arguments.push_back(absl::StrCat("--checkpoints=", checkpoints));
  return options;
}

// The same training in new processes, from the newest checkpoint to its end.
std::vector<DigitsReport> Resume(const Flags& flags, const std::string& checkpoints,
                                 absl::Time deadline) {
  ShardedOptimizerOptions saved;
  saved.job = kJob;
  saved.optimizer = kSharded;
  const absl::optional<std::string> newest = CheckpointDirectory(checkpoints, saved).newest();
  if (!newest.has_value()) {
    throw StatusError(absl::DataLossError(absl::StrCat("there is no checkpoint in ", checkpoints,
                                                       ", although one was to be saved "
                                                       "after step ",
                                                       flags.save_after)));
  }
  Print(absl::StrCat("\nAll processes have ended. Going on from ", *newest, " at ",
                     flags.resume_ranks, " ranks.\n"));
  RankLauncher::Options options = JobOptions(flags, checkpoints);
  options.services.world_size = flags.resume_ranks;
  const int batch_size = flags.batch_size - flags.batch_size % flags.resume_ranks;
  options.arguments.insert(options.arguments.end(),
                           {"--resume", absl::StrCat("--batch-size=", batch_size)});
  const std::unique_ptr<RankLauncher> launcher = ValueOrThrow(RankLauncher::Start(options));
  std::vector<DigitsReport> reports = ReportsOf(*launcher, deadline);
  ThrowIfError(launcher->Finish(deadline));
  Print(absl::StrFormat("Resumed at %d ranks, it ends with an accuracy of %.2f %%.\n",
                        flags.resume_ranks, 100 * reports[0].sharded.accuracy));
  return reports;
}

// Whether the training is long enough for a checkpoint.
bool Saves(const Flags& flags, int ranks) {
  if (flags.save_after == 0) return false;
  const int64_t steps = StepsOf(TrainingOf(flags, 0, ranks), LoadDigits(flags).train);
  if (flags.save_after <= steps) return true;
  Print(absl::StrCat("No checkpoint is saved: the training ends after step ", steps,
                     ", before "
                     "--save-after=",
                     flags.save_after, ".\n"));
  return false;
}

int RunJob(const Flags& flags) {
  const absl::Time deadline = absl::Now() + kTogether;
  const ScratchDirectory scratch;
  const std::string checkpoints = (scratch.path() / "checkpoints").string();
  const RankLauncher::Options options = JobOptions(flags, checkpoints);
  const bool saves = Saves(flags, options.services.world_size);
  Print(absl::StrCat("Starting a coordinator",
                     options.services.shard_server ? ", a shard server" : "", " and ",
                     options.services.world_size, " ranks.\n"));
  std::unique_ptr<RankLauncher> launcher = ValueOrThrow(RankLauncher::Start(options));
  const std::vector<DigitsReport> reports = ReportsOf(*launcher, deadline);
  Show(reports);
  if (!saves) ThrowIfError(launcher->Finish(deadline));
  launcher.reset();  // kills what still runs
  absl::optional<DigitsRun> resumed;
  absl::Status as_before;
  if (saves) {
    const std::vector<DigitsReport> after = Resume(flags, checkpoints, deadline);
    resumed = after[0].sharded;
    as_before = CheckResumed(reports, after);
  }
  WriteJson(flags, reports, resumed);
  ThrowIfError(as_before);
  return ParametersEqual(reports) ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(const Flags& flags) {
  if (!ActsAsRank(flags.rank)) return RunJob(flags);
  const ShardedOptimizerOptions options = RankOptions(flags.rank);
  if (flags.batch_size % options.world_size != 0) {
    throw StatusError(absl::InvalidArgumentError(
        absl::StrCat("--batch-size=", flags.batch_size,
                     " is not a multiple of the number of ranks, ", options.world_size)));
  }
  return RunRank(flags, options);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  return optshard::RankMain(argc, argv, optshard::CommandLineOf(flags), &flags.rank,
                            [&flags] { return optshard::Main(flags); });
}
