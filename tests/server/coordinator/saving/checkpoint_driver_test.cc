#include "server/coordinator/saving/checkpoint_driver.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/verify.h"
#include "tests/server/checkpoint/crashes.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/server/coordinator/saving/fake_saving_owners.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::FakeFileSystem;
using testing::FakeSavingOwners;
using ::testing::HasSubstr;
using testing::SaveCall;
using testing::SavedModel;

constexpr SaveCall kCalls[] = {SaveCall::kPrepare, SaveCall::kOpen, SaveCall::kWrite};

// Two ranks save to /dir, which has the checkpoint of step 1 already.
class CheckpointDriverTest : public ::testing::Test {
 protected:
  CheckpointDriverTest() : owners_(&system_, 1) {
    options_.files = &system_;
    options_.owners = &owners_;
    order_.optimizer = "default";
    order_.directory = "/dir";
    EXPECT_EQ(Save().status(), absl::OkStatus());
    owners_.SetStep(2);
  }

  absl::StatusOr<SavedCheckpoint> Save() {
    return CheckpointDriver(options_).Save(order_, cancellation_, board_);
  }

  void SetLabels(const std::vector<std::string>& labels) {
    order_.labels = std::make_shared<SaveLabels>(labels);
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto entries = Root()->List();
    for (const DirectoryEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }
  std::unique_ptr<Directory> Root() { return system_.OpenDirectory("/dir").value(); }

  // "" where it is there and whole.
  std::string Difference(const std::string& name, StepNumber step) {
    const auto reader = CheckpointReader::Open(Root()->OpenDirectory(name).value());
    if (!reader.ok()) return reader.status().ToString();
    if ((*reader)->manifest().step != step) return "its step";
    const auto damages = VerifyCheckpoint(*Root()->OpenDirectory(name).value());
    if (!damages.ok()) return damages.status().ToString();
    return damages->empty() ? "" : damages->front().what;
  }

  void ExpectOnlyTheFormerOne() {
    EXPECT_THAT(Names(), ElementsAre("step-000000000001"));
    EXPECT_EQ(Difference("step-000000000001", 1), "");
  }

  // Those that are listed are whole, and the former one is among them. Their names.
  std::set<std::string> ExpectListedOnesWhole() {
    std::set<std::string> listed;
    const auto entries = ListCheckpoints(*Root()).value();
    for (const CheckpointEntry& entry : entries) {
      if (entry.state == CheckpointState::kUncommitted) continue;
      EXPECT_EQ(entry.state, CheckpointState::kCommitted) << entry.problem;
      EXPECT_EQ(Difference(entry.name, entry.parsed.step), "") << entry.name;
      listed.insert(entry.name);
    }
    EXPECT_EQ(listed.count("step-000000000001"), 1u);
    return listed;
  }

  void RemoveAllButTheFormerOne() {
    const auto entries = ListCheckpoints(*Root()).value();
    for (const CheckpointEntry& entry : entries) {
      if (entry.parsed.step == 1) continue;
      EXPECT_EQ(RemoveCheckpoint(*Root(), entry).status(), absl::OkStatus());
    }
    ExpectOnlyTheFormerOne();
  }

  FakeFileSystem system_;
  FakeSavingOwners owners_;
  CheckpointDriver::Options options_;
  SaveOrder order_;
  Cancellation cancellation_;
  const std::shared_ptr<SaveBoard> board_ = std::make_shared<SaveBoard>([] {});
};

TEST_F(CheckpointDriverTest, AllOwnersWrite_IsCommitted) {
  SetLabels({"best"});
  const auto saved = Save();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->name, "step-000000000002");
  EXPECT_EQ(saved->step, 2);
  EXPECT_EQ(Difference(saved->name, 2), "");
  const auto reader = CheckpointReader::Open(Root()->OpenDirectory(saved->name).value());
  EXPECT_EQ(SavedModel(2).Difference(**reader, 3, PartitionPolicy::kGreedy), "");
  EXPECT_THAT((*reader)->manifest().labels, ElementsAre("best"));
  EXPECT_EQ((*reader)->manifest().bytes(), saved->bytes);
  const SaveProgress progress = board_->Read();
  EXPECT_EQ(progress.phase, SavePhase::kCommitting);
  EXPECT_EQ(progress.name, saved->name);
  EXPECT_EQ(progress.step, 2);
  EXPECT_THAT(progress.opened, ElementsAre(true, true));
  EXPECT_EQ(progress.written, 2);
  EXPECT_GT(progress.bytes, 0);
  EXPECT_EQ(progress.bytes, progress.all_bytes);
}

TEST_F(CheckpointDriverTest, AStepThatIsSavedAgain_IsANewCheckpoint) {
  owners_.SetStep(1);
  EXPECT_EQ(Save()->name, "step-000000000001.1");
  EXPECT_EQ(Difference("step-000000000001", 1), "");
}

TEST_F(CheckpointDriverTest, AnOwnerThatFails_LeavesNothingAndIsNamed) {
  for (const SaveCall call : kCalls) {
    for (const Rank rank : {0, 1}) {
      owners_.before = [&](SaveCall made, Rank by) {
        return made == call && by == rank ? errors::PeerLost(by, "its stream broke")
                                          : absl::OkStatus();
      };
      const absl::Status failed = Save().status();
      EXPECT_TRUE(errors::IsPeerLost(failed)) << failed;
      EXPECT_THAT(std::string(failed.message()), HasSubstr(absl::StrCat("rank ", rank)));
      ExpectOnlyTheFormerOne();
    }
  }
  EXPECT_GT(owners_.cancelled(), 0);
}

TEST_F(CheckpointDriverTest, AFullDisk_NamesRankAndDirectory) {
  system_.SetCapacity(100'000);
  const absl::Status failed = Save().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("rank "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("/dir/step-000000000002"));
  ExpectOnlyTheFormerOne();
}

TEST_F(CheckpointDriverTest, AnOwnerThatDoesNotAnswer_IsNamed) {
  options_.prepare_timeout = options_.open_timeout = options_.longest_stall = absl::Milliseconds(1);
  for (const SaveCall call : kCalls) {
    owners_.Silence(call, 1);
    const absl::Status failed = Save().status();
    EXPECT_TRUE(errors::IsPeersTimedOut(failed)) << failed;
    EXPECT_THAT(errors::RanksOf(failed), ElementsAre(1));
    ExpectOnlyTheFormerOne();
  }
}

TEST_F(CheckpointDriverTest, Cancelled_EndsWithTheReasonAndLeavesNothing) {
  for (const SaveCall call : kCalls) {
    owners_.Silence(call, 1);
    Cancellation cancellation;
    absl::Status failed;
    std::thread saving(
        [&] { failed = CheckpointDriver(options_).Save(order_, cancellation, board_).status(); });
    owners_.AwaitSilent(1);
    cancellation.Cancel(absl::CancelledError("the coordinator is stopped"));
    saving.join();
    EXPECT_EQ(failed, absl::CancelledError("the coordinator is stopped"));
    ExpectOnlyTheFormerOne();
  }
}

TEST_F(CheckpointDriverTest, AnErrorOfAnyOperation_LeavesTheFormerOneAndNothingInDoubt) {
  const int64_t first = system_.operations();
  ASSERT_TRUE(Save().ok());
  const int64_t operations = system_.operations() - first;
  ASSERT_GT(operations, 20);
  for (int64_t i = 0; i < operations; ++i) {
    system_.FailOperation(system_.operations() + i, absl::DataLossError("the device failed"));
    const auto saved = Save();
    // The last sync of the commit: it says that it is there.
    const bool is_there = !saved.ok() && absl::StrContains(saved.status().message(), "is complete");
    EXPECT_EQ(Difference("step-000000000001", 1), "") << i;
    const auto entries = ListCheckpoints(*Root());
    for (const CheckpointEntry& entry : *entries) {
      if (entry.parsed.step != 2) continue;
      if (entry.state == CheckpointState::kCommitted) {
        EXPECT_EQ(Difference(entry.name, 2), "") << i;
      }
    }
    if (saved.ok() || is_there) continue;
    EXPECT_THAT(std::string(saved.status().message()), HasSubstr("the device failed")) << i;
  }
}

TEST_F(CheckpointDriverTest, APowerFailureAtAnyOperation_LosesNothingThatWasCommitted) {
  int points = 0;
  for (const testing::Crash& crash : testing::Crashes()) {
    bool crashed = true;
    for (uint64_t operation = 0; crashed && !HasFailure(); ++operation) {
      SCOPED_TRACE(absl::StrCat("seed ", crash.seed, ", operation ", operation));
      system_.CrashAtOperation(system_.operations() + static_cast<int64_t>(operation));
      const auto saved = Save();
      crashed = system_.crashed();
      system_.Restart(crash.unsynced, crash.seed * 1000 + operation);
      const std::set<std::string> listed = ExpectListedOnesWhole();
      EXPECT_TRUE(!saved.ok() || listed.count(saved->name) == 1) << "a committed one is lost";
      RemoveAllButTheFormerOne();
      if (crashed) ++points;
    }
  }
  std::printf("%d crash points\n", points);
  EXPECT_GT(points, 100);
}

TEST_F(CheckpointDriverTest, SnapshotsThatCouldNotBeOpened_AreTriedAgain) {
  int left = 2;
  owners_.before = [&](SaveCall call, Rank rank) {
    return call == SaveCall::kOpen && rank == 1 && left-- > 0 ? absl::AbortedError("too late")
                                                              : absl::OkStatus();
  };
  EXPECT_EQ(Save().status(), absl::OkStatus());
  EXPECT_EQ(owners_.connects(), 1 + 3);
  left = 1000;
  EXPECT_EQ(Save().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(owners_.connects(), 1 + 3 + 3);
}

TEST_F(CheckpointDriverTest, AStepThatIsMissed_IsNotTriedAgain) {
  owners_.before = [](SaveCall call, Rank) {
    return call == SaveCall::kPrepare ? absl::AbortedError("too late") : absl::OkStatus();
  };
  order_.step = 7;
  order_.awaits_step = true;
  EXPECT_EQ(Save().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(owners_.awaited_step, 7);
  EXPECT_EQ(owners_.connects(), 1 + 1);
  ExpectOnlyTheFormerOne();
}

TEST_F(CheckpointDriverTest, AStepThatDoesNotCome_IsNotAwaitedLongerThanIsOrdered) {
  owners_.Silence(SaveCall::kOpen, 1);
  order_.step = 7;
  order_.awaits_step = true;
  order_.patience = absl::Milliseconds(1);
  EXPECT_TRUE(errors::IsPeersTimedOut(Save().status()));
  ExpectOnlyTheFormerOne();
}

TEST_F(CheckpointDriverTest, ARankThatDoesNotOpenByItself_IsToldWhatAnotherHasOpened) {
  std::function<void(absl::StatusOr<SnapshotMoment>)> answer;
  owners_.keeps_open = [&](std::function<void(absl::StatusOr<SnapshotMoment>)> kept) {
    answer = std::move(kept);
  };
  owners_.told = [&](Rank rank, const SnapshotMoment& moment) {
    EXPECT_EQ(rank, 0);
    answer(moment);
  };
  EXPECT_EQ(Save().status(), absl::OkStatus());
}

TEST_F(CheckpointDriverTest, AnAnswerToAnEarlierAttempt_IsNotShown) {
  std::function<void(absl::StatusOr<SnapshotMoment>)> answer;
  owners_.keeps_open = [&](std::function<void(absl::StatusOr<SnapshotMoment>)> kept) {
    answer = std::move(kept);
  };
  bool is_answered = false;
  owners_.before = [&](SaveCall call, Rank rank) {
    const bool is_first = call == SaveCall::kOpen && owners_.connects() == 2;
    if (is_first && rank == 1) return absl::AbortedError("too late");
    if (call == SaveCall::kPrepare && owners_.connects() == 3) {
      answer(SnapshotMoment{1, 99});
      EXPECT_EQ(board_->Read().step, absl::nullopt);
      EXPECT_THAT(board_->Read().opened, ElementsAre(false, false));
      is_answered = true;
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(Save().status(), absl::OkStatus());
  EXPECT_TRUE(is_answered);
}

TEST_F(CheckpointDriverTest, BytesThatCannotBe_FailTheSave) {
  constexpr int64_t kLimit = int64_t{1} << 46;
  using Progress = std::pair<int64_t, int64_t>;
  for (const Progress& said : {Progress{-1, 1}, {2, 1}, {0, kLimit + 1}, {INT64_MAX, INT64_MAX}}) {
    owners_.progress_of_rank_1 = said;
    const absl::Status failed = Save().status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(failed.message()),
                HasSubstr(absl::StrCat("rank 1: it says that it has written ", said.first)));
    ExpectOnlyTheFormerOne();
  }
  owners_.progress_of_rank_1 = Progress{0, kLimit};
  EXPECT_EQ(Save().status(), absl::OkStatus());
}

TEST_F(CheckpointDriverTest, OwnersThatOpenAtDifferentSteps_AreNotSaved) {
  for (const SnapshotMoment moment :
       {SnapshotMoment{1, 3}, SnapshotMoment{2, 2}, SnapshotMoment{1, 2, 1}}) {
    owners_.moment_of_rank_1 = moment;
    const absl::Status failed = Save().status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(failed.message()),
                HasSubstr(absl::StrCat(
                    "step 2 (generation 1, after 0 skipped calls), rank 1 at step ", moment.step,
                    " (generation ", moment.generation, ", after ", moment.skipped, ")")));
    ExpectOnlyTheFormerOne();
  }
  EXPECT_EQ(owners_.connects(), 1 + 3 + 3 + 3) << "each was tried again";
}

TEST_F(CheckpointDriverTest, OwnersThatSayTheWrong_AreNotCommitted) {
  owners_.file_of_rank_1 = 0;
  EXPECT_FALSE(Save().ok());
  ExpectOnlyTheFormerOne();
  owners_.file_of_rank_1 = 1;
  owners_.describes = false;
  EXPECT_EQ(Save().status().code(), absl::StatusCode::kInternal);
  ExpectOnlyTheFormerOne();
}

TEST_F(CheckpointDriverTest, OrdersThatCannotBeCarriedOut_AreRefusedBeforeAnyoneIsAsked) {
  const int before = owners_.connects();
  for (const std::string directory : {"", "dir", "/dir/../other", "/dir/..", "/di\nr"}) {
    order_.directory = directory;
    EXPECT_EQ(Save().status().code(), absl::StatusCode::kInvalidArgument) << directory;
  }
  order_.directory = "/nothing/dir";
  EXPECT_EQ(Save().status().code(), absl::StatusCode::kNotFound);
  order_.directory = "/dir";
  SetLabels({""});
  EXPECT_EQ(Save().status().code(), absl::StatusCode::kInvalidArgument);
  SetLabels({});
  EXPECT_EQ(owners_.connects(), before);
  order_.optimizer = "discriminator";
  order_.directory = "/new";
  EXPECT_EQ(Save().status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(system_.OpenDirectory("/new").ok());
  ExpectOnlyTheFormerOne();
}

TEST_F(CheckpointDriverTest, Retention_RemovesOlderOnesOfTheSameJobWithoutALabel) {
  SetLabels({"best"});
  ASSERT_TRUE(Save().ok());  // step 2
  SetLabels({});
  owners_.SetStep(3);
  ASSERT_TRUE(Save().ok());
  owners_.SetStep(4);
  order_.prune.keep_last = 2;
  const auto saved = Save();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(saved->removed, ElementsAre("step-000000000001"));
  EXPECT_EQ(saved->removal, absl::OkStatus());
  EXPECT_THAT(Names(), ElementsAre("step-000000000002", "step-000000000003", "step-000000000004"));
}

TEST_F(CheckpointDriverTest, RetentionThatFails_IsNoFailureOfTheSave) {
  order_.prune.keep_last = 1;
  bool found = false;
  for (int64_t i = 0; !found && i < 1000; ++i) {
    system_.FailOperation(system_.operations() + i, absl::PermissionDeniedError("not yours"));
    const auto saved = Save();
    found = saved.ok() && !saved->removal.ok();
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace optshard
