// What fails while a load stages its state: all ranks are told the same, and have what they had.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/link/memory_budget.h"
#include "tests/client/state_lines.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/forwarding_owner.h"
#include "tests/testing/hooked_state.h"

namespace optshard {
namespace {

using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::ForwardingOwner;
using ::testing::HasSubstr;
using testing::HookedState;
using testing::RunRanks;

constexpr int kRanks = 2;
constexpr int kSaved = 3;
constexpr int kLast = 6;

// Of two ranks; state and parameters of both types, with masters, over many buckets.
class Trainer {
 public:
  explicit Trainer(ShardedOptimizerOptions options) {
    options.policy = PartitionPolicy::kBalanced;
    options.parameter_names = {"a", "b", "c"};
    options.master_weights = true;
    options.buckets = {16384, 4096};
    optimizer_ = std::make_unique<ShardedOptimizer>(parameters_, RuleOptions("adam"), options);
  }
  // Gradients depend on how many steps it has made.
  void Steps(int steps) {
    for (; steps > 0; --steps, ++made_) {
      for (const at::Tensor& each : parameters_) {
        each.mutable_grad() = at::full(each.sizes(), 0.125 * (made_ % 5 + 1), each.options());
      }
      optimizer_->step();
    }
  }
  // Everything that a step depends on.
  std::vector<std::string> State() {
    std::vector<std::string> lines = testing::StateLines(*optimizer_, parameters_);
    lines.push_back(absl::StrCat("step ", optimizer_->finished_step()));
    return lines;
  }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  const std::vector<at::Tensor> parameters_ = {
      testing::Parameter({60000}, 1),
      at::full({20000}, 1, at::TensorOptions(at::kBFloat16)).set_requires_grad(true),
      testing::Parameter({7}, 1)};
  std::unique_ptr<ShardedOptimizer> optimizer_;
  int made_ = 0;
};

// After step kSaved, and what undisturbed training has after kLast.
struct Saved {
  std::string root = testing::NewCheckpointRoot();
  StateDict dict;
  std::vector<std::string> undisturbed;
};
const Saved& TheSaved() {
  static const Saved* const saved = [] {
    auto* const made = new Saved;
    testing::WrittenCheckpoint checkpoint(made->root);
    ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
      Trainer trainer(options);
      trainer.Steps(kSaved);
      checkpoint.WriteShare(trainer.optimizer(), trainer.parameters());
      trainer.optimizer().consolidate_state_dict(0);
      if (options.rank == 0) made->dict = trainer.optimizer().state_dict();
      trainer.Steps(kLast - kSaved);
      const std::vector<std::string> state = trainer.State();
      if (options.rank == 0) made->undisturbed = state;
      trainer.optimizer().Close();
    }));
    checkpoint.Commit();
    return made;
  }();
  return *saved;
}

// Has the rank's owner call `hook` before its calls of staging.
class HookedOwner final : public ForwardingOwner {
 public:
  HookedOwner(std::unique_ptr<OwnerLink> owner, HookedState::Hook hook)
      : ForwardingOwner(std::move(owner)), hook_(std::move(hook)) {}

  absl::StatusOr<StateAccess*> state(absl::Duration timeout) override {
    const absl::StatusOr<StateAccess*> state = ForwardingOwner::state(timeout);
    if (!state.ok()) return state.status();
    state_ = std::make_unique<HookedState>(*state, hook_);
    return state_.get();
  }

 private:
  const HookedState::Hook hook_;
  std::unique_ptr<HookedState> state_;
};

struct Way {
  std::string name;
  std::function<void(Trainer&, const std::string& root)> load;
};

class StagedLoad : public ::testing::TestWithParam<Way> {
 protected:
  // Two ranks load after step 1, of which `rank` has the hook. Where it fails, all are told the
  // same and nothing has changed: undisturbed training goes on. What they are told; "": they have
  // loaded.
  static std::string Load(const std::string& root, Rank rank, const HookedState::Hook& hook) {
    std::string told[kRanks];
    const int64_t reserved = MemoryBudget::Unlimited().reserved_bytes();
    ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
      ClientSeams seams = *ScopedClientSeams::Current();
      if (options.rank == rank) {
        seams.link = [&](std::unique_ptr<OwnerLink> owner) -> std::unique_ptr<OwnerLink> {
          return std::make_unique<HookedOwner>(std::move(owner), hook);
        };
      }
      const ScopedClientSeams scoped(seams);
      Trainer trainer(options);
      trainer.Steps(1);
      const std::vector<std::string> before = trainer.State();
      const absl::Status status = ErrorOf([&] { GetParam().load(trainer, root); });
      if (!status.ok()) {
        told[options.rank] = status.ToString();
        EXPECT_EQ(trainer.State(), before);
        trainer.Steps(kLast - 1);
        EXPECT_EQ(trainer.State(), TheSaved().undisturbed);
      }
      trainer.optimizer().Close();
    }));
    EXPECT_EQ(told[0], told[1]);
    EXPECT_EQ(MemoryBudget::Unlimited().reserved_bytes(), reserved);
    return told[0];
  }

  // How many calls of staging a rank makes.
  static int CallsOf(Rank rank) {
    std::atomic<int> calls{0};
    EXPECT_EQ(Load(TheSaved().root, rank,
                   [&](HookedState::Call call) {
                     if (call == HookedState::Call::kStage) ++calls;
                     return absl::OkStatus();
                   }),
              "");
    return calls;
  }
};

TEST_P(StagedLoad, MemoryThatIsRefused_IsNamedOnAllRanksAndChangesNothing) {
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const std::string told = Load(TheSaved().root, rank, [](HookedState::Call call) {
      return call == HookedState::Call::kBegin ? absl::ResourceExhaustedError("no memory for it")
                                               : absl::OkStatus();
    });
    EXPECT_THAT(told, HasSubstr(absl::StrCat("RESOURCE_EXHAUSTED: rank ", rank, ": no memory")));
  }
}

TEST_P(StagedLoad, AnyCallThatFails_IsNamedOnAllRanksAndChangesNothing) {
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const int calls = CallsOf(rank);
    EXPECT_GT(calls, 4);
    for (const int at : {0, 1, calls / 2, calls - 2, calls - 1}) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", call ", at));
      std::atomic<int> call{0};
      const std::string told = Load(TheSaved().root, rank, [&](HookedState::Call what) {
        return what == HookedState::Call::kStage && call++ == at ? absl::InternalError("it fails")
                                                                 : absl::OkStatus();
      });
      EXPECT_THAT(told, HasSubstr(absl::StrCat("INTERNAL: rank ", rank, ": it fails")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, StagedLoad,
                         ::testing::Values(Way{"Checkpoint",
                                               [](Trainer& trainer, const std::string& root) {
                                                 trainer.optimizer().load_checkpoint(root);
                                               }},
                                           Way{"DictOfAll",
                                               [](Trainer& trainer, const std::string&) {
                                                 trainer.optimizer().load_state_dict(
                                                     TheSaved().dict);
                                               }},
                                           Way{"DictOfOne",
                                               [](Trainer& trainer, const std::string&) {
                                                 trainer.optimizer().load_state_dict(
                                                     TheSaved().dict, 0);
                                               }}),
                         [](const auto& test) { return test.param.name; });

// --- Files that change while they are read.

class StagedLoadOfFiles : public StagedLoad {};

TEST_P(StagedLoadOfFiles, FileThatIsSpoiltMeanwhile_LoadsAsItWasOrChangesNothing) {
  using Spoil = std::function<void(const std::string& path)>;
  const std::vector<std::pair<std::string, Spoil>> spoils = {
      {"removed", [](const std::string& path) { std::filesystem::remove(path); }},
      {"truncated",
       [](const std::string& path) {
         std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
       }},
      {"damaged",
       [](const std::string& path) {
         std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
         file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path)) / 2);
         file << "damage";
       }},
  };
  int refused = 0;
  for (const auto& [name, spoil] : spoils) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (const int at : {-1, 0, 2}) {
        SCOPED_TRACE(absl::StrCat(name, ", rank ", rank, ", call ", at));
        const std::string root = testing::NewCheckpointRoot();
        std::filesystem::copy(TheSaved().root, root, std::filesystem::copy_options::recursive);
        std::atomic<int> calls{0};
        const std::string told = Load(root, rank, [&, spoil_it = spoil](HookedState::Call call) {
          const bool now = at < 0 ? call == HookedState::Call::kBegin
                                  : call == HookedState::Call::kStage && calls++ == at;
          if (now) spoil_it(absl::StrCat(root, "/step-000000000003/owner-00001.safetensors"));
          return absl::OkStatus();
        });
        if (told.empty()) continue;
        ++refused;
        EXPECT_THAT(told, HasSubstr("DATA_LOSS"));
        EXPECT_THAT(told, HasSubstr("owner-00001.safetensors"));
      }
    }
  }
  EXPECT_GT(refused, 4);
}

INSTANTIATE_TEST_SUITE_P(Files, StagedLoadOfFiles,
                         ::testing::Values(Way{"Checkpoint",
                                               [](Trainer& trainer, const std::string& root) {
                                                 trainer.optimizer().load_checkpoint(
                                                     root, "step-000000000003");
                                               }}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace optshard
