// Jobs that save a checkpoint or export their model while they train, embedded and at a shard
// server, and others that go on from it.
#include "tests/client/saved_jobs.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/sharded_optimizer.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "tests/client/attached_options.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/files_in.h"

namespace optshard {
namespace {

using testing::ErrorOf;
using testing::FilesIn;
using testing::NewCheckpointRoot;
using Job = testing::SavedJob;
using Trainer = testing::SavedJobTrainer;

struct Way {
  int world_size = 1;
  bool attached = false;
};

std::string TextOf(const Way& way) {
  return absl::StrCat(way.world_size, way.attached ? " attached" : " embedded");
}

void OnRanks(const Way& way, const std::function<void(ShardedOptimizerOptions)>& body) {
  testing::ExpectAllOk(way.attached ? testing::RunServedAttached(way.world_size, body)
                                    : testing::RunServedRanks(way.world_size, body));
}

class SavedJobTest : public ::testing::TestWithParam<Job> {};

TEST_P(SavedJobTest, AModelThatIsExportedWhileTrainingGoesOn_IsTheCheckpointsOfTheStep) {
  constexpr int64_t kShardBytes = 20'000;
  const std::string root = NewCheckpointRoot();
  const std::string model = absl::StrCat(root, "/model");
  for (const Way& way : {Way{1}, Way{2}, Way{3}, Way{2, true}}) {
    SCOPED_TRACE(TextOf(way));
    const std::string checkpoints = absl::StrCat(root, "/", TextOf(way));
    const std::string exported = absl::StrCat(model, " of ", TextOf(way));
    OnRanks(way, [&](const ShardedOptimizerOptions& options) {
      Trainer trainer(GetParam(), options);
      trainer.StepTo(2);
      if (options.rank == 0) {
        trainer.optimizer().save_checkpoint(checkpoints);
        EXPECT_EQ(trainer.optimizer().wait_checkpoint(),
                  absl::StrCat(checkpoints, "/step-000000000002"));
        trainer.optimizer().export_model(exported, kShardBytes);
      }
      trainer.StepTo(6);
      if (options.rank == 0) {
        EXPECT_EQ(trainer.optimizer().wait_checkpoint(), exported);
        EXPECT_EQ(ErrorOf([&] { trainer.optimizer().export_model(exported); }).code(),
                  absl::StatusCode::kAlreadyExists);
      }
    });
    PosixFileSystem files;
    const auto directory = files.OpenDirectory(checkpoints).value();
    const auto reader =
        CheckpointReader::Open(directory->OpenDirectory("step-000000000002").value()).value();
    ASSERT_EQ(directory->CreateDirectory("expected"), absl::OkStatus());
    ASSERT_EQ(ExportModel(*reader, *directory->OpenDirectory("expected").value(), kShardBytes),
              absl::OkStatus());
    EXPECT_EQ(FilesIn(files, exported), FilesIn(files, absl::StrCat(checkpoints, "/expected")));
  }
}

// Saves after step 2 while the ranks go on to the last step. Returns the parameters after that.
std::vector<std::string> SaveOnTheWay(const Job& job, const Way& way, const std::string& root) {
  absl::Mutex mutex;
  std::vector<std::string> values;
  OnRanks(way, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(job, options);
    trainer.StepTo(2);
    // One rank's word is enough.
    if (options.rank == 1) trainer.optimizer().save_checkpoint(root);
    trainer.StepTo(6);
    const std::string path = trainer.optimizer().wait_checkpoint();
    EXPECT_EQ(path, options.rank == 1 ? absl::StrCat(root, "/step-000000000002") : "");
    absl::MutexLock lock(&mutex);
    values = trainer.Values();
  });
  EXPECT_EQ(testing::List(root).size(), 1);
  return values;
}

TEST_P(SavedJobTest, WhatIsSavedWhileTrainingGoesOn_GoesOnAnywhereBitForBit) {
  struct Ways {
    Way before;
    std::vector<Way> after;
  };
  constexpr bool kAttached = true;
  for (const Ways& ways :
       {Ways{{2}, {{1}, {2}, {3}, {3, kAttached}}}, Ways{{3}, {{2}}},
        Ways{{2, kAttached}, {{1}, {3, kAttached}}}, Ways{{3, kAttached}, {{2, kAttached}}}}) {
    const std::string root = NewCheckpointRoot();
    const std::vector<std::string> expected = SaveOnTheWay(GetParam(), ways.before, root);
    for (const Way& after : ways.after) {
      SCOPED_TRACE(absl::StrCat(TextOf(ways.before), " -> ", TextOf(after)));
      OnRanks(after, [&](const ShardedOptimizerOptions& options) {
        Trainer trainer(GetParam(), options);
        trainer.optimizer().load_checkpoint(root);
        EXPECT_EQ(trainer.optimizer().finished_step(), 2);
        trainer.StepTo(6);
        EXPECT_EQ(trainer.Values(), expected);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, SavedJobTest,
    ::testing::Values(Job{}, Job{"sgd", PartitionPolicy::kGreedy},
                      Job{"adamw", PartitionPolicy::kBalanced, "int8_dynamic"},
                      Job{"adam", PartitionPolicy::kBalanced, "int8_companded"},
                      Job{"nadam", PartitionPolicy::kGreedy, "float32", at::kBFloat16, true},
                      Job{"adam", PartitionPolicy::kBalanced, "bfloat16", at::kDouble},
                      Job{"adam", PartitionPolicy::kGreedyInOrder}));

}  // namespace
}  // namespace optshard
