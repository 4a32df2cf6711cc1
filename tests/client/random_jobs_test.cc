// Random jobs - models, param groups, rules, types, forms of state, numbers of ranks, policies,
// planes and memory - have the bits of the unsharded run.
//
// To repeat a job that failed, and to try more of them than a test run does:
//   bazel test //tests/client:sharded_optimizer_bits_test --test_filter=RandomJobsTest.*
// with --test_env=OPTSHARD_SEED=17, the first seed, and --test_env=OPTSHARD_SEEDS=1, how many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "server/update/gradient_support.h"
#include "server/update/state_support.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/recorded_job.h"
#include "tests/testing/rule_shape.h"
#include "tests/testing/rule_table.h"

namespace optshard {
namespace {

using testing::ElementOrder;
using testing::ExpectAllOk;
using testing::FakeHub;
using testing::RecordedGroup;
using testing::RecordedJob;
using testing::RecordedParameter;
using testing::TrainedTensor;

enum class Plane : uint8_t { kAtOnce, kDelayed, kSharedMemory, kSeveralHosts };

// How a job is trained.
struct Way {
  PartitionPolicy policy = PartitionPolicy::kReplicated;
  Plane plane = Plane::kAtOnce;
  bool share_parameters = false;
  std::vector<bool> views;         // by rank: whether its tensors lie in flat memory
  std::vector<std::string> nodes;  // by rank
  BucketOptions buckets;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) { job_.seed = seed; }

  // Fills job() and way().
  void Run() {
    world_size_ = static_cast<int>(1 + Below(5));
    way_.policy = Of({PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                      PartitionPolicy::kBalanced, PartitionPolicy::kReplicated});
    way_.plane = Of({Plane::kAtOnce, Plane::kDelayed, Plane::kSharedMemory});
    way_.share_parameters = way_.plane == Plane::kSharedMemory &&
                            way_.policy != PartitionPolicy::kReplicated && Below(4) == 0;
    way_.buckets = {Of({1024, 4096, 65536, 1 << 22}), Of({0, 512, 4096})};
    const bool alike = Below(3) > 0;
    const bool views = Below(2) == 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      way_.views.push_back(alike ? views : Below(2) == 0);
    }
    // One copy of the parameters is flat memory.
    if (way_.share_parameters) way_.views.assign(world_size_, true);
    const uint64_t nodes = way_.plane == Plane::kSharedMemory ? 1 + Below(2) : 1;
    for (int rank = 0; rank < world_size_; ++rank) {
      way_.nodes.push_back(absl::StrCat("node", Below(nodes)));
    }
    job_.state = testing::TableStates()[Below(testing::TableStates().size())].options;
    if (Below(4) == 0) job_.gradient_mode = GradientMode::kAveraged;
    job_.steps = static_cast<int>(2 + Below(4));
    job_.specials = Below(4) == 0;
    Groups();
    PublishDType();
    // Drawn last: every seed keeps its job.
    if (way_.plane == Plane::kSharedMemory && !way_.share_parameters && GlooIsIsolated() &&
        Below(2) == 0) {
      way_.plane = Plane::kSeveralHosts;
    }
  }

  const RecordedJob& job() const { return job_; }
  const Way& way() const { return way_; }
  int world_size() const { return world_size_; }
  bool has_sparse() const { return has_sparse_; }

  std::string Text() const {
    std::vector<std::string> groups;
    for (const RecordedGroup& group : job_.groups) groups.push_back(group.name);
    return absl::StrCat(world_size_, " ranks on ", absl::StrJoin(way_.nodes, " "), ", ",
                        NameOf(way_.policy), ", plane ", static_cast<int>(way_.plane),
                        way_.share_parameters ? " with shared parameters" : "", ", views ",
                        absl::StrJoin(way_.views, " "), ", buckets ", way_.buckets.max_bytes, " ",
                        way_.buckets.pack_below_bytes, ", ", NameOf(job_.state.format),
                        ", published in ", NameOf(job_.state.publish_dtype), ", masters ",
                        job_.state.master_weights ? job_.state.master_weight_bits : 0, ", ",
                        NameOf(job_.gradient_mode),
                        job_.main_gradients ? " main gradients, " : ", ", job_.steps,
                        " steps; groups ", absl::StrJoin(groups, "; "));
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  template <typename T>
  T Of(std::initializer_list<T> choices) {
    return *(choices.begin() + Below(choices.size()));
  }

  // Of float32 parameters only.
  void PublishDType() {
    bool has_float32 = false;
    for (const RecordedGroup& group : job_.groups) {
      for (const auto& parameter : group.parameters) {
        has_float32 = has_float32 || parameter.type == at::kFloat;
      }
    }
    const DType chosen = Of({DType::kBFloat16, DType::kFloat16});
    if (Below(4) == 0) job_.state.publish_dtype = chosen;
    if (!has_float32) job_.state.publish_dtype = DType::kFloat32;
  }

  void Groups() {
    std::vector<const UpdateRule*> rules;
    for (const UpdateRule* rule : RuleRegistry::All()) {
      const bool is_cut = way_.policy == PartitionPolicy::kBalanced;
      const bool fits =
          (rule->spec().element_wise || !is_cut) && testing::GoesBesideLibTorch(*rule);
      if (fits && CheckStateFormat(*rule, job_.state.format).ok()) rules.push_back(rule);
    }
    bool has_half = false;
    bool may_have_main_gradients = true;  // which are dense
    const uint64_t groups = 1 + Below(4);
    for (uint64_t g = 0; g < groups; ++g) {
      const UpdateRule& chosen = *rules[Below(rules.size())];
      const std::vector<RuleOptions> choices = testing::SlotChoices(chosen);
      RuleOptions rule = choices[Below(choices.size())];
      const bool is_sparse = MakeSparse(chosen, rule);
      job_.groups.push_back({absl::StrCat(rule.rule(), " ", rule.values().ToString()), rule, {}});
      // The first group is never empty, others may be.
      for (uint64_t left = Below(6) + (g == 0 ? 1 : 0); left > 0; --left) {
        const bool only_sparse = chosen.spec().sparse_gradients == SparseGradients::kOnly;
        RecordedParameter parameter =
            is_sparse && (only_sparse || Below(2) == 0) ? Table() : Parameter();
        parameter.shape = testing::ShapeFor(chosen, std::move(parameter.shape));
        has_sparse_ |= parameter.sparse;
        const bool is_sparse_half = parameter.sparse && c10::elementSize(parameter.type) == 2;
        may_have_main_gradients = may_have_main_gradients && !is_sparse_half;
        has_half |= c10::elementSize(parameter.type) == 2;
        job_.groups.back().parameters.push_back(parameter);
      }
    }
    if (has_half) {
      job_.main_gradients = may_have_main_gradients && Below(3) == 0;
      return;
    }
    job_.state.master_weights = false;
    job_.state.master_weight_bits = 32;
  }

  // Whether parameters of the rule may have sparse gradients. Takes the rule's decay for that,
  // which they cannot have.
  bool MakeSparse(const UpdateRule& rule, RuleOptions& options) {
    const SparseGradients takes = rule.spec().sparse_gradients;
    if (takes == SparseGradients::kNo) return false;
    if (takes == SparseGradients::kToo && Below(2) == 0) return false;
    if (options.values().Find("weight_decay") != nullptr) options.Set("weight_decay", 0);
    return CheckTakesGradient(rule, *rule.Validate(options.values()), job_.state.format, true).ok();
  }

  // Of which steps touch some rows.
  RecordedParameter Table() {
    RecordedParameter table;
    table.shape = {static_cast<int64_t>(1 + Below(120)), static_cast<int64_t>(1 + Below(60))};
    if (Below(3) == 0) table.shape.push_back(3);
    table.type = Of({at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
    table.sparse = true;
    return table;
  }

  RecordedParameter Parameter() {
    const auto size = [this](uint64_t most) { return static_cast<int64_t>(1 + Below(most)); };
    RecordedParameter parameter;
    switch (Below(7)) {
      case 0:
        parameter.shape = Below(2) == 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{3, 0};
        break;
      case 1:
        break;  // a scalar
      case 2:
        parameter.shape = {size(6), size(5), 3, 3};
        break;
      case 3:
        parameter.shape = {1024 * size(5) + 1 - static_cast<int64_t>(Below(3))};
        break;
      case 4:
        parameter.shape = {size(300)};
        break;
      default:
        parameter.shape = {size(90), size(90)};
    }
    parameter.type = Of({at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
    parameter.order = Of({ElementOrder::kContiguous, ElementOrder::kTransposed,
                          ElementOrder::kEveryOther, ElementOrder::kChannelsLast});
    return parameter;
  }

  std::mt19937_64 random_;
  RecordedJob job_;
  Way way_;
  int world_size_ = 1;
  bool has_sparse_ = false;
};

// What each rank has left.
std::vector<std::vector<TrainedTensor>> TrainAll(const RecordedJob& job, int world_size,
                                                 const Way& way) {
  std::vector<std::vector<TrainedTensor>> ranks(world_size);
  const auto train = [&](ShardedOptimizerOptions options) {
    options.policy = way.policy;
    options.parameters_as_bucket_view = !way.views.empty() && way.views[options.rank];
    options.share_parameters = way.share_parameters;
    options.node = way.nodes[options.rank];
    options.buckets = way.buckets;
    ranks[options.rank] = testing::Train(job, options);
  };
  if (way.plane == Plane::kSharedMemory) {
    ExpectAllOk(testing::RunRanksOfOneHost(world_size, train).thrown);
  } else if (way.plane == Plane::kSeveralHosts) {
    ExpectAllOk(testing::RunRanksOfSeveralHosts(world_size, train).thrown);
  } else {
    const bool at_once = way.plane == Plane::kAtOnce;
    ExpectAllOk(testing::RunRanks(world_size, train,
                                  at_once ? FakeHub::Mode::kImmediate : FakeHub::Mode::kDelayed));
  }
  return ranks;
}

// From the environment, where it is set.
uint64_t Number(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  uint64_t value = otherwise;
  EXPECT_TRUE(text == nullptr || absl::SimpleAtoi(text, &value)) << variable << "=" << text;
  return value;
}

TEST(RandomJobsTest, Train_ShardedInSomeWay_HasTheBitsOfTheUnshardedRun) {
  const uint64_t first = Number("OPTSHARD_SEED", 1);
  const uint64_t count = Number("OPTSHARD_SEEDS", 60);
  int sparse = 0;
  int sparse_in_one_pass = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Draw draw(seed);
    draw.Run();
    SCOPED_TRACE(absl::StrCat("OPTSHARD_SEED=", seed, ": ", draw.Text()));
    Way unsharded;
    unsharded.plane = Plane::kSharedMemory;
    unsharded.nodes = draw.way().nodes;
    const auto expected = TrainAll(draw.job(), draw.world_size(), unsharded);
    const auto actual = TrainAll(draw.job(), draw.world_size(), draw.way());
    ASSERT_EQ(testing::Difference(expected[0], actual), "");
    if (!draw.has_sparse() || draw.world_size() == 1) continue;
    ++sparse;
    if (draw.way().plane == Plane::kSharedMemory && draw.way().views[0]) ++sparse_in_one_pass;
  }
  if (count < 60) return;
  EXPECT_GT(sparse, 0);
  EXPECT_GT(sparse_in_one_pass, 0);
}

}  // namespace
}  // namespace optshard
