// What goes on from a loaded state dict, or from a checkpoint, has the bits of a run that was never
// stopped.
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/loaded_checkpoint.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/recorded_job.h"
#include "tests/testing/rule_table.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using testing::RecordedJob;
using testing::RunRanks;

struct Saved {
  std::vector<at::Tensor> parameters;
  std::vector<char> dict;  // pickled: another process loads it
  int steps = 0;
  std::string checkpoints;  // the directory of the one that the ranks saved of the same state
};

// As what it is handed over.
enum class Form { kStateDict, kCheckpoint };

struct Way {
  int world_size = 1;
  PartitionPolicy policy = PartitionPolicy::kReplicated;
  bool attached = false;
  int from = -1;  // whose dict is loaded
};

// Runs each rank's part of a job, embedded or at a server; one that saves checkpoints if `saving`.
void OnRanks(const Way& way, bool saving,
             const std::function<void(ShardedOptimizerOptions)>& body) {
  if (saving) {
    ExpectAllOk(way.attached ? testing::RunServedAttached(way.world_size, body)
                             : testing::RunServedRanks(way.world_size, body));
  } else {
    ExpectAllOk(way.attached ? testing::RunAttached(way.world_size, body)
                             : RunRanks(way.world_size, body));
  }
}

void Load(const Saved& saved, Form form, const Way& way, ShardedOptimizer& optimizer,
          const std::vector<at::Tensor>& parameters) {
  if (form == Form::kCheckpoint) {
    const LoadedCheckpoint loaded = optimizer.load_checkpoint(saved.checkpoints);
    EXPECT_EQ(static_cast<int>(loaded.step), saved.steps);
    EXPECT_EQ(static_cast<int>(optimizer.finished_step()), saved.steps);
    return;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].detach().copy_(saved.parameters[i]);
  }
  optimizer.refresh_parameters();
  StateDict dict;
  if (way.from == -1 || way.from == optimizer.options().rank) {
    dict = *StateDictFromIValue(torch::jit::pickle_load(saved.dict));
  }
  optimizer.load_state_dict(dict, way.from);
}

// The job's steps from the `first` to its last, from what was saved if anything was.
Saved TrainPart(const RecordedJob& job, const Way& way, int first, const Saved* start, Form form) {
  absl::Mutex mutex;
  Saved saved;
  saved.steps = job.steps;
  const bool saving = form == Form::kCheckpoint && start == nullptr;
  if (saving) saved.checkpoints = testing::NewCheckpointRoot();
  OnRanks(way, saving, [&](ShardedOptimizerOptions options) {
    options.policy = way.policy;
    options.buckets = {4096, 1024};
    testing::RecordedSteps steps;
    steps.first = first;
    if (start != nullptr) {
      steps.before = [&](ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters) {
        Load(*start, form, way, optimizer, parameters);
      };
    }
    steps.after = [&](ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters) {
      if (saving) {
        optimizer.save_checkpoint(saved.checkpoints);
        optimizer.wait_checkpoint();
      }
      optimizer.consolidate_state_dict(way.world_size - 1);
      if (options.rank != way.world_size - 1) return;
      absl::MutexLock lock(&mutex);
      for (const at::Tensor& each : parameters) saved.parameters.push_back(each.detach().clone());
      saved.dict = torch::jit::pickle_save(ToIValue(optimizer.state_dict()));
    };
    testing::Train(job, options, testing::SlotsOfEmbeddedOwner, steps);
  });
  return saved;
}

void ExpectSame(const Saved& actual, const Saved& expected) {
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_EQ(testing::BytesOf(actual.parameters[i]), testing::BytesOf(expected.parameters[i]))
        << "parameter " << i;
  }
  const auto lines = [](const Saved& saved) {
    return DigestLines(*StateDictFromIValue(torch::jit::pickle_load(saved.dict)));
  };
  const std::vector<std::string> other = lines(actual);
  const std::vector<std::string> lines_expected = lines(expected);
  ASSERT_EQ(other.size(), lines_expected.size());
  for (size_t i = 0; i < other.size(); ++i) EXPECT_EQ(other[i], lines_expected[i]);
}

// Sanitizers look for other things than bits, and take many times as long: there one of the ways
// does for each form of state.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAllWays = false;
#else
constexpr bool kAllWays = true;
#endif

constexpr auto kGreedy = PartitionPolicy::kGreedy;
constexpr auto kBalanced = PartitionPolicy::kBalanced;
constexpr auto kInOrder = PartitionPolicy::kGreedyInOrder;
constexpr auto kReplicated = PartitionPolicy::kReplicated;

// How a job ran until its state was saved, and the ways in which it then goes on.
struct Ways {
  Way before;
  std::vector<Way> after;
};

Way Possible(Way way, testing::RuleKind kind) {
  const bool is_cut = way.policy == kBalanced;
  if (is_cut && kind == testing::RuleKind::kWholeParameters) way.policy = kGreedy;
  return way;
}

std::string TextOf(const Way& way) {
  return absl::StrCat(way.world_size, " ", NameOf(way.policy), way.attached ? " attached" : "");
}

class ResumedStateTest : public ::testing::TestWithParam<testing::NamedState> {
 protected:
  // Every rule, each of the ways.
  static void Resume(std::vector<Ways> all, Form form = Form::kStateDict) {
    if (!kAllWays) {
      const size_t one = GetParam().name.size() % all.size();
      all = {{all[one].before, {all[one].after.front()}}};
    }
    for (const auto kind : {testing::RuleKind::kElementWise, testing::RuleKind::kWholeParameters}) {
      RecordedJob job = testing::TableJob(kind, GetParam());
      if (job.groups.empty()) continue;
      job.gradient_mode = GradientMode::kAveraged;  // whatever the number of ranks
      RecordedJob half = job;
      half.steps = 2;
      const Saved expected = TrainPart(job, Way(), 1, nullptr, Form::kStateDict);
      for (const Ways& ways : all) {
        const Saved saved = TrainPart(half, Possible(ways.before, kind), 1, nullptr, form);
        for (const Way& after : ways.after) {
          SCOPED_TRACE(
              absl::StrCat(job.groups[0].name, ": ", TextOf(ways.before), " -> ", TextOf(after)));
          ExpectSame(TrainPart(job, Possible(after, kind), 3, &saved, form), expected);
        }
      }
    }
  }
};

TEST_P(ResumedStateTest, ResumedAtOtherRanksAndPolicies_EveryRule_HasTheSameBits) {
  Resume({{{2, kBalanced}, {{1, kGreedy}, {3, kGreedy}}},
          {{2, kGreedy}, {{1, kBalanced}, {3, kBalanced, false, 1}}},
          {{3, kBalanced}, {{2, kGreedy}, {2, kBalanced}}},
          {{3, kInOrder}, {{2, kBalanced, false, 0}, {2, kInOrder}}}});
}

TEST_P(ResumedStateTest, ResumedAtAServerAndBack_EveryRule_HasTheSameBits) {
  Resume({{{2, kBalanced, true}, {{3, kGreedy, true, 2}, {1, kBalanced}}},
          {{3, kGreedy}, {{2, kBalanced, true}}},
          {{2, kGreedy, true}, {{3, kBalanced, true}}}});
}

TEST_P(ResumedStateTest, FromACheckpointAtOtherRanksAndPolicies_EveryRule_HasTheSameBits) {
  Resume({{{2, kBalanced}, {{1, kGreedy}, {3, kBalanced}}},
          {{2, kInOrder}, {{2, kGreedy}, {3, kInOrder}}},
          {{3, kBalanced}, {{2, kBalanced}}},
          {{1, kReplicated}, {{2, kReplicated}}},
          {{3, kReplicated}, {{2, kGreedy}}}},
         Form::kCheckpoint);
}

TEST_P(ResumedStateTest, FromACheckpointAtAServerAndBack_EveryRule_HasTheSameBits) {
  Resume({{{2, kBalanced, true}, {{3, kGreedy, true}, {1, kBalanced}}},
          {{3, kGreedy}, {{2, kBalanced, true}}}},
         Form::kCheckpoint);
}

INSTANTIATE_TEST_SUITE_P(Every, ResumedStateTest, ::testing::ValuesIn(testing::TableStates()),
                         [](const auto& state) { return state.param.name; });

}  // namespace
}  // namespace optshard
