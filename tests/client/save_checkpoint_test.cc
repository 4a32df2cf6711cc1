// Checkpoints that trainers save, and jobs that go on from them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/checkpoint_directory.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "client/state_dict_file.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "tests/client/attached_options.h"
#include "tests/client/saved_jobs.h"
#include "tests/client/state_lines.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExpectAllOk;
using ::testing::HasSubstr;
using testing::List;
using testing::NewCheckpointRoot;
using testing::Parameter;
using testing::RunServedRanks;
using Job = testing::SavedJob;
using Trainer = testing::SavedJobTrainer;
using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;

void SaveWhatTrainersKeep(decltype(RunServedRanks)* run) {
  const std::string root = NewCheckpointRoot();
  const auto kept = [](int rank, StepNumber step) {
    return absl::StrCat("rank ", rank, " after ", step);
  };
  ExpectAllOk(run(2, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    for (StepNumber step = 1; step <= 3; ++step) {
      trainer.optimizer().set_blob(kept(options.rank, step));
      trainer.StepTo(step);
      if (step == 2) trainer.optimizer().save_checkpoint(root);
    }
    trainer.optimizer().wait_checkpoint();
  }));
  for (const int ranks : {1, 2, 3}) {
    ExpectAllOk(run(ranks, [&](const ShardedOptimizerOptions& options) {
      Trainer trainer(Job(), options);
      trainer.optimizer().load_checkpoint(root);
      EXPECT_EQ(trainer.optimizer().blob(), ranks == 2 ? kept(options.rank, 2) : "");
      EXPECT_THAT(CheckpointDirectory(root, options).blobs("step-000000000002"),
                  ElementsAre(kept(0, 2), kept(1, 2)));
      // A checkpoint that follows has what was loaded.
      if (ranks != 2) return;
      trainer.StepTo(3);
      trainer.optimizer().save_checkpoint(absl::StrCat(root, "/again"));
      trainer.optimizer().wait_checkpoint();
      EXPECT_THAT(
          CheckpointDirectory(absl::StrCat(root, "/again"), options).blobs("step-000000000003"),
          ElementsAre(kept(0, 2), kept(1, 2)));
    }));
  }
}

std::vector<absl::Status> RunAttachedRanks(
    int world_size, const std::function<void(ShardedOptimizerOptions)>& body) {
  return testing::RunServedAttached(world_size, body);
}

TEST(SaveCheckpointTest, WhatTrainersKeep_IsThatOfTheSavedStep_ByRank) {
  SaveWhatTrainersKeep(RunServedRanks);
}

TEST(SaveCheckpointTest, WhatAttachedTrainersKeep_IsThatOfTheSavedStep_ByRank) {
  SaveWhatTrainersKeep(RunAttachedRanks);
}

TEST(SaveCheckpointTest, AllRanksWord_IsOneCheckpoint) {
  const std::string root = NewCheckpointRoot();
  ExpectAllOk(RunServedRanks(3, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    for (const StepNumber step : {1, 2}) {
      trainer.StepTo(step);
      trainer.optimizer().save_checkpoint(root, {absl::StrCat("after ", step)});
      EXPECT_EQ(trainer.optimizer().wait_checkpoint(),
                absl::StrCat(root, "/step-00000000000", step));
    }
  }));
  const std::vector<CheckpointEntry> entries = List(root);
  ASSERT_EQ(entries.size(), 2);
  for (const CheckpointEntry& entry : entries) {
    EXPECT_EQ(entry.state, CheckpointState::kCommitted);
    EXPECT_EQ(entry.world_size, 3);
    EXPECT_THAT(entry.labels, ElementsAre(absl::StrCat("after ", entry.parsed.step)));
  }
}

// The others are in the next step meanwhile, and wait there.
void LetOneRankSaveAndWait(decltype(RunServedRanks)* run) {
  const std::string root = NewCheckpointRoot();
  ExpectAllOk(run(3, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    for (StepNumber step = 1; step <= 5; ++step) {
      trainer.StepTo(step);
      if (options.rank != 1) continue;
      trainer.optimizer().save_checkpoint(root);
      EXPECT_EQ(trainer.optimizer().wait_checkpoint(),
                absl::StrFormat("%s/step-%012d", root, step));
    }
    trainer.optimizer().Close();
  }));
  EXPECT_EQ(List(root).size(), 5u);
}

TEST(SaveCheckpointTest, OneRanksWord_ThatWaitsForItBeforeItsNextStep_IsTheSame) {
  LetOneRankSaveAndWait(RunServedRanks);
}

TEST(SaveCheckpointTest, OneAttachedRanksWord_ThatWaitsForItBeforeItsNextStep_IsTheSame) {
  LetOneRankSaveAndWait(RunAttachedRanks);
}

TEST(SaveCheckpointTest, Close_WaitsForWhatIsBeingSaved) {
  const std::string root = NewCheckpointRoot();
  ExpectAllOk(RunServedRanks(2, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    trainer.StepTo(1);
    trainer.optimizer().save_checkpoint(root);
    trainer.optimizer().Close();
  }));
  ASSERT_EQ(List(root).size(), 1);
  EXPECT_EQ(List(root)[0].state, CheckpointState::kCommitted);
}

TEST(SaveCheckpointTest, WhatCannotBeSaved_IsSaidAndTrainingGoesOn) {
  const std::string root = NewCheckpointRoot();
  ExpectAllOk(RunServedRanks(2, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    trainer.StepTo(1);
    if (options.rank == 0) {
      const absl::Status relative =
          ErrorOf([&] { trainer.optimizer().save_checkpoint("checkpoints"); });
      EXPECT_EQ(relative.code(), absl::StatusCode::kInvalidArgument) << relative;
      const absl::Status missing = ErrorOf(
          [&] { trainer.optimizer().save_checkpoint(absl::StrCat(root, "/nothing/there")); });
      EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
      // It comes into being with the save.
      trainer.optimizer().save_checkpoint(absl::StrCat(root, "/new"));
    }
    trainer.StepTo(3);
  }));
  EXPECT_EQ(List(absl::StrCat(root, "/new")).size(), 1);
}

// Writes to the parameters once save_checkpoint has returned; its error, or that of the saving.
template <typename Write>
absl::Status SaveAndWrite(const std::string& root, Trainer& trainer, const Write& write) {
  return ErrorOf([&] {
    trainer.optimizer().save_checkpoint(root);
    for (const at::Tensor& each : trainer.parameters()) write(each);
    trainer.optimizer().wait_checkpoint();
  });
}

// With an owner in the trainer's process, and in a server's.
class SaveWhileTrainersWriteTest : public ::testing::TestWithParam<decltype(RunServedRanks)*> {};
INSTANTIATE_TEST_SUITE_P(Places, SaveWhileTrainersWriteTest,
                         ::testing::Values(&RunServedRanks, &RunAttachedRanks),
                         [](const auto& test) {
                           return test.index == 0 ? "Embedded" : "Attached";
                         });

// One rank's values, as a job that loads the checkpoint has them.
std::vector<std::string> LoadedValues(const std::string& root) {
  std::vector<std::string> values;
  ExpectAllOk(RunServedRanks(1, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    trainer.optimizer().load_checkpoint(root);
    values = trainer.Values();
  }));
  return values;
}

void FillInPlace(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor(parameter).fill_(7);
}

TEST_P(SaveWhileTrainersWriteTest, InPlaceAfterTheCall_TheyGetAnErrorOrWhatWasThen) {
  const std::string root = NewCheckpointRoot();
  std::vector<std::string> expected;
  std::vector<std::string> expected_again;
  absl::Status first;
  ExpectAllOk(GetParam()(1, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    trainer.StepTo(2);
    expected = trainer.Values();
    first = SaveAndWrite(absl::StrCat(root, "/first"), trainer, FillInPlace);
    trainer.StepTo(3);
    // From now on it is known to write.
    expected_again = trainer.Values();
    EXPECT_EQ(SaveAndWrite(absl::StrCat(root, "/second"), trainer, FillInPlace), absl::OkStatus());
  }));
  if (first.ok()) {
    EXPECT_EQ(LoadedValues(absl::StrCat(root, "/first")), expected);
  } else {
    EXPECT_EQ(first.code(), absl::StatusCode::kFailedPrecondition) << first;
    EXPECT_THAT(std::string(first.message()), ::testing::HasSubstr("the trainer of rank 0"));
  }
  EXPECT_EQ(LoadedValues(absl::StrCat(root, "/second")), expected_again);
}

TEST_P(SaveWhileTrainersWriteTest, ByAnyWay_ThatAskForCopiesAtOnce) {
  const std::string root = NewCheckpointRoot();
  std::vector<std::string> expected;
  ExpectAllOk(GetParam()(1, [&](ShardedOptimizerOptions options) {
    options.copy_parameters_at_once = true;
    Trainer trainer(Job(), options);
    trainer.StepTo(2);
    expected = trainer.Values();
    EXPECT_EQ(SaveAndWrite(root, trainer,
                           [](const at::Tensor& parameter) {
                             std::fill_n(static_cast<char*>(parameter.data_ptr()),
                                         parameter.nbytes(), char{1});
                           }),
              absl::OkStatus());
  }));
  EXPECT_EQ(LoadedValues(root), expected);
}

TEST(SaveCheckpointTest, AClosedOptimizer_IsNotSaved) {
  ExpectAllOk(RunServedRanks(1, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Job(), options);
    trainer.optimizer().Close();
    EXPECT_EQ(ErrorOf([&] { trainer.optimizer().save_checkpoint("/"); }).code(),
              absl::StatusCode::kFailedPrecondition);
  }));
}

// What other programs are given of a checkpoint has the numbers of a state dict.
void ExpectExported(const std::string& path, Rank rank, const StateDict& expected) {
  PosixFileSystem files;
  const auto reader = CheckpointReader::Open(files.OpenDirectory(path).value()).value();
  const std::string exported = absl::StrCat(path, "/../state_", rank, ".pt");
  ASSERT_EQ(ExportState(*reader, files, exported), absl::OkStatus());
  const StateDict dict = LoadStateDict(exported).value();
  ASSERT_EQ(dict.param_groups.size(), expected.param_groups.size());
  for (size_t g = 0; g < dict.param_groups.size(); ++g) {
    EXPECT_EQ(dict.param_groups[g].params, expected.param_groups[g].params);
  }
  ASSERT_EQ(dict.state.size(), expected.state.size());
  for (const auto& [number, values] : expected.state) {
    for (const auto& [slot, value] : values) {
      EXPECT_TRUE(at::equal(dict.state.at(number).at(slot).toTensor(), value.toTensor()))
          << slot << " of " << number;
    }
  }
}

// Of two groups, the first of which gets a parameter later; all are of the same shape, so that
// names alone tell them apart. Trains to step 4, from a checkpoint of step `load`, or from the
// start (0).
std::vector<std::string> WithAnAddedParameter(ShardedOptimizerOptions options, StepNumber load,
                                              StepNumber save, const std::string& root) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(Parameter({1500}, 1.0F + static_cast<float>(i)));
  }
  const std::vector<OptimizerParamGroup> groups = {
      OptimizerParamGroup(std::vector<at::Tensor>{all[0], all[1]}),
      OptimizerParamGroup(std::vector<at::Tensor>{all[2]})};
  options.policy = PartitionPolicy::kBalanced;
  ShardedOptimizer optimizer(groups, RuleOptions("adam").Set("lr", 0.125), options);
  if (load == 0) {
    for (size_t i = 0; i < 3; ++i) {
      all[i].mutable_grad() = at::full({1500}, 0.25 * (1.0 + static_cast<double>(i)));
    }
    optimizer.step();
  }
  optimizer.add_parameters({all[3]});
  if (load != 0) {
    const LoadedCheckpoint loaded = optimizer.load_checkpoint(root);
    EXPECT_EQ(loaded.step, load);
    optimizer.consolidate_state_dict(-1);
    ExpectExported(absl::StrCat(root, "/", loaded.name), options.rank, optimizer.state_dict());
  }
  while (optimizer.finished_step() < 4) {
    for (size_t i = 0; i < 4; ++i) {
      const double step = static_cast<double>(optimizer.finished_step());
      all[i].mutable_grad() = at::full({1500}, 0.125 * (step + 2.0 * static_cast<double>(i)));
    }
    optimizer.step();
    if (optimizer.finished_step() == save && options.rank == 0) optimizer.save_checkpoint(root);
  }
  optimizer.wait_checkpoint();
  std::vector<std::string> lines = testing::StateLines(optimizer, all);
  optimizer.Close();
  return lines;
}

// How a job comes to its second group.
enum class Second { kAdded, kConstructed };

// Steps to 4, and returns what there is then. Saves after step 2, or begins with what was saved.
std::vector<std::string> WithASecondGroup(ShardedOptimizerOptions options, Second second,
                                          bool loads, const std::string& root) {
  const std::vector<at::Tensor> all = {Parameter({1500}, 1), Parameter({700}, 1)};
  std::vector<OptimizerParamGroup> groups;
  for (const at::Tensor& each : all) groups.emplace_back(std::vector<at::Tensor>{each});
  groups[1].set_options(std::make_unique<AdamOptions>(0.5));
  const bool adds = second == Second::kAdded;
  options.policy = PartitionPolicy::kBalanced;
  ShardedOptimizer optimizer(adds ? std::vector<OptimizerParamGroup>{groups[0]} : groups,
                             AdamOptions(0.125), options);
  const auto step = [&](size_t parameters) {
    const double next = static_cast<double>(optimizer.finished_step() + 1);
    for (size_t i = 0; i < parameters; ++i) {
      all[i].mutable_grad() = at::full(all[i].sizes(), 0.125 * next + static_cast<double>(i));
    }
    optimizer.step();
  };
  if (!loads) step(1);
  if (adds) optimizer.add_param_group(groups[1]);
  if (loads) {
    EXPECT_EQ(optimizer.load_checkpoint(root).step, 2);
  }
  while (optimizer.finished_step() < 4) {
    step(2);
    if (!loads && optimizer.finished_step() == 2) optimizer.save_checkpoint(root);
  }
  optimizer.wait_checkpoint();
  std::vector<std::string> lines = testing::StateLines(optimizer, all);
  optimizer.Close();
  return lines;
}

void SaveWithAGroupThatWasAdded(decltype(RunServedRanks)* run) {
  const std::string root = NewCheckpointRoot();
  absl::Mutex mutex;
  std::vector<std::string> expected;
  ExpectAllOk(run(2, [&](const ShardedOptimizerOptions& options) {
    std::vector<std::string> lines = WithASecondGroup(options, Second::kAdded, false, root);
    absl::MutexLock lock(&mutex);
    expected = std::move(lines);
  }));
  for (const Second second : {Second::kAdded, Second::kConstructed}) {
    ExpectAllOk(run(3, [&](const ShardedOptimizerOptions& options) {
      EXPECT_EQ(WithASecondGroup(options, second, true, root), expected)
          << (second == Second::kAdded ? "added" : "constructed");
    }));
  }
}

TEST(SavedJob, WithAGroupThatWasAdded_GoesOnWithOneThatIsAddedOrConstructed) {
  SaveWithAGroupThatWasAdded(RunServedRanks);
}

TEST(SavedJob, WithAGroupThatWasAddedAtAServer_GoesOnWithOneThatIsAddedOrConstructed) {
  SaveWithAGroupThatWasAdded(RunAttachedRanks);
}

TEST(SavedJob, WithParametersAddedToAGroup_GoesOnWithTheSameCallsBitForBit) {
  const std::string root = NewCheckpointRoot();
  absl::Mutex mutex;
  std::vector<std::string> expected;
  ExpectAllOk(RunServedRanks(2, [&](const ShardedOptimizerOptions& options) {
    std::vector<std::string> values = WithAnAddedParameter(options, 0, 2, root);
    absl::MutexLock lock(&mutex);
    expected = std::move(values);
  }));
  ExpectAllOk(RunServedRanks(3, [&](const ShardedOptimizerOptions& options) {
    EXPECT_EQ(WithAnAddedParameter(options, 2, 0, root), expected);
  }));
}

}  // namespace
}  // namespace optshard
