// A contestant of ours: one rank whose rounds save or load checkpoints of the recipe, between steps
// or not.
#include <torch/utils.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "benchmarks/bench_models.h"
#include "benchmarks/file_rendezvous.h"
#include "benchmarks/job_options.h"
#include "benchmarks/recipe_training.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/status_error.h"
#include "common/cli/command_line.h"
#include "common/clock.h"

namespace optshard {
namespace {

struct Flags {
  int layers = 20;
  int rows = 20;
  std::string round = "save,wait";
  std::string directory;
  std::string meeting_place;
  bool keep = false;
  JobFlags job;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-checkpoint",
                    "One rank of ours, whose rounds save or load checkpoints. run_bench.py drives "
                    "it.",
                    {"optshard-bench-checkpoint --layers=2 --directory=/tmp/checkpoints"}});
  line.Add("layers", &flags.layers, "how many layers of Linear(2000, 2000)").AtLeast(1);
  line.Add("rows", &flags.rows, "of a rank's batch").AtLeast(1);
  line.Add(
      "round", &flags.round,
      "what a round does, with commas between: save, wait (until it is committed), step, load "
      "(the newest), train (forward and backward), work (the same, on all ranks; its time does "
      "not count)");
  line.Add("directory", &flags.directory, "of the checkpoints, the same for all ranks")
      .Value("PATH");
  line.Add("meeting-place", &flags.meeting_place,
           "where ranks wait for each other's work: a directory, the same for all, empty at first")
      .Value("PATH");
  line.Add("keep", &flags.keep, "what the rounds save; otherwise each is removed after its round");
  AddJobOptions(line, &flags.job);
  return line;
}

class Rank {
 public:
  explicit Rank(const Flags& flags)
      : directory_(flags.directory),
        rank_(flags.job.rank),
        world_size_(flags.job.world_size),
        meeting_place_(flags.meeting_place),
        training_(flags.layers, flags.rows, flags.job.rank),
        optimizer_(training_.model()->parameters(), RuleOptions("adam").Set("lr", 0.01),
                   JobOptions(flags.job)) {
    training_.ForwardBackward();
    optimizer_.step();
  }

  void Do(const std::string& action) {
    const std::map<std::string, std::function<void()>> actions = {
        {"save", [this] { optimizer_.save_checkpoint(directory_); }},
        {"wait", [this] { optimizer_.wait_checkpoint(); }},
        {"step", [this] { optimizer_.step(); }},
        {"load", [this] { optimizer_.load_checkpoint(directory_); }},
        {"train", [this] { Train(); }},
        {"work", [this] { NotMeasured([this] { Work(); }); }},
    };
    actions.at(action)();
  }

  // And makes the next one another checkpoint: there is one of a step.
  void RemoveSaved() {
    optimizer_.wait_checkpoint();
    if (rank_ == 0) std::filesystem::remove_all(directory_);
    optimizer_.step();
  }

  std::map<std::string, double> Check() const { return CheckOf(training_.model()->parameters()); }

 private:
  void Train() {
    optimizer_.zero_grad();
    training_.ForwardBackward();
  }

  // Waits for the other ranks, too: otherwise the step after it would.
  void Work() {
    Train();
    ++worked_;
    const auto key = [this](int rank) { return absl::StrCat("worked-", worked_, "-", rank); };
    ThrowIfError(meeting_place_.Put(key(rank_), "yes"));
    const absl::Time deadline = Clock::Monotonic().Now() + absl::Minutes(1);
    for (int rank = 0; rank < world_size_; ++rank) {
      ThrowIfError(meeting_place_.Get(key(rank), deadline).status());
    }
  }

  const std::string directory_;
  const int rank_;
  const int world_size_;
  FileRendezvous meeting_place_;
  int worked_ = 0;
  RecipeTraining training_;
  ShardedOptimizer optimizer_;
};

Contestant SetUp(const Flags& flags) {
  torch::set_num_threads(1);
  const std::vector<std::string> actions = absl::StrSplit(flags.round, ',', absl::SkipEmpty());
  const auto rank = std::make_shared<Rank>(flags);
  Contestant contestant;
  contestant.one_round = [rank, actions] {
    for (const std::string& action : actions) rank->Do(action);
  };
  contestant.check = [rank] { return rank->Check(); };
  if (!flags.keep) contestant.after_round = [rank] { rank->RemoveSaved(); };
  return contestant;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
