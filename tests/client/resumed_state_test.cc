// What goes on from a loaded state dict has the bits of a run that was never stopped.
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
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
};

struct Way {
  int world_size = 1;
  PartitionPolicy policy = PartitionPolicy::kReplicated;
  bool attached = false;
  int from = -1;  // whose dict is loaded
};

// Runs each rank's part of a job, embedded or at a server.
void OnRanks(const Way& way, const std::function<void(ShardedOptimizerOptions)>& body) {
  ExpectAllOk(way.attached ? testing::RunAttached(way.world_size, body)
                           : RunRanks(way.world_size, body));
}

// The job's steps from the `first` to its last, from what was saved if anything was.
Saved TrainPart(const RecordedJob& job, const Way& way, int first, const Saved* start) {
  absl::Mutex mutex;
  Saved saved;
  OnRanks(way, [&](ShardedOptimizerOptions options) {
    options.policy = way.policy;
    options.buckets = {4096, 1024};
    testing::RecordedSteps steps;
    steps.first = first;
    if (start != nullptr) {
      steps.before = [&](ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters) {
        for (size_t i = 0; i < parameters.size(); ++i) {
          parameters[i].detach().copy_(start->parameters[i]);
        }
        optimizer.refresh_parameters();
        StateDict dict;
        if (way.from == -1 || way.from == options.rank) {
          dict = *StateDictFromIValue(torch::jit::pickle_load(start->dict));
        }
        optimizer.load_state_dict(dict, way.from);
      };
    }
    steps.after = [&](ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters) {
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

void ResumeInEveryForm(const std::vector<std::pair<Way, Way>>& ways) {
  size_t next = 0;
  for (const testing::NamedState& state : testing::TableStates()) {
    for (const auto kind : {testing::RuleKind::kElementWise, testing::RuleKind::kWholeParameters}) {
      RecordedJob job = testing::TableJob(kind, state);
      if (job.groups.empty()) continue;
      job.gradient_mode = GradientMode::kAveraged;  // whatever the number of ranks
      auto [before, after] = ways[next++ % ways.size()];
      if (kind == testing::RuleKind::kWholeParameters) {
        for (Way* way : {&before, &after}) {
          if (way->policy == PartitionPolicy::kBalanced) way->policy = PartitionPolicy::kGreedy;
        }
      }
      SCOPED_TRACE(absl::StrCat(state.name, " ", job.groups[0].name, ": ", before.world_size, " ",
                                NameOf(before.policy), " -> ", after.world_size, " ",
                                NameOf(after.policy)));
      const Saved expected = TrainPart(job, Way(), 1, nullptr);
      RecordedJob half = job;
      half.steps = 2;
      const Saved saved = TrainPart(half, before, 1, nullptr);
      ExpectSame(TrainPart(job, after, 3, &saved), expected);
    }
  }
}

TEST(ResumedStateTest, ResumedAtOtherRanksAndPolicies_EveryRuleAndFormOfState_HasTheSameBits) {
  const auto greedy = PartitionPolicy::kGreedy;
  const auto balanced = PartitionPolicy::kBalanced;
  ResumeInEveryForm({{{2, balanced}, {1, greedy}},
                     {{2, greedy}, {3, balanced, false, 1}},
                     {{3, balanced}, {2, greedy}},
                     {{3, greedy}, {2, balanced, false, 0}},
                     {{2, balanced}, {3, greedy}}});
}

TEST(ResumedStateTest, ResumedAtAServerAndBack_EveryRuleAndFormOfState_HasTheSameBits) {
  const auto greedy = PartitionPolicy::kGreedy;
  const auto balanced = PartitionPolicy::kBalanced;
  ResumeInEveryForm({{{2, balanced, true}, {3, greedy, true, 2}},
                     {{3, greedy, false}, {2, balanced, true}},
                     {{2, greedy, true}, {1, greedy, false}}});
}

}  // namespace
}  // namespace optshard
