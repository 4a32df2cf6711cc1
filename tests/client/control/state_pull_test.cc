#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/control/state_pull_rpc.h"
#include "common/cancellation.h"
#include "common/hyperparameters.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/server/shard/inspection/fake_shard_view.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::FakeShardView;
using ::testing::HasSubstr;

constexpr int64_t kElements = 700'000;  // two frames each

// Elements of one slot; rank r has those from r * kElements on, all of its value.
class FixedSnapshot final : public ShardSnapshot {
 public:
  FixedSnapshot(Rank rank, StepNumber step) : step_(step), values_(kElements, rank + 1.0f) {
    for (const double lr : {0.5, 0.25}) groups_.emplace_back().Set("lr", lr + rank);
    parts_.push_back({0, "step", StateFormat::kFloat64, 0, 1});
    parts_.push_back({0, "exp_avg", StateFormat::kFloat32, rank * kElements, kElements});
  }
  StepNumber step() const override { return step_; }
  Generation generation() const override { return 3; }
  absl::Span<const Hyperparameters> hyperparameters() const override { return groups_; }
  absl::string_view blob() const override { return ""; }
  const std::vector<Part>& parts() const override { return parts_; }
  PartState state(int) const override { return PartState::kKept; }
  Bytes Read(int part, int64_t first, int64_t) const override {
    if (part == 0) return {reinterpret_cast<const char*>(&count_), nullptr};
    return {reinterpret_cast<const char*>(&values_[first]), nullptr};
  }
  Bytes ReadKept(int part, KeptArray, int64_t first, int64_t elements) const override {
    return Read(part, first, elements);
  }
  void Close() override {}

 private:
  const StepNumber step_;
  const double count_ = 4;
  std::vector<Hyperparameters> groups_;
  std::vector<Part> parts_;
  const std::vector<float> values_;
};

class Values final : public StateDestination {
 public:
  absl::Status Take(const Piece& piece, absl::Span<const Bytes> values) override {
    absl::MutexLock lock(&mutex_);
    if (!refusal.ok()) return refusal;
    std::string bytes;
    for (const Bytes& part : values) bytes.append(part.data, part.size);
    if (piece.slot == "step") {
      std::memcpy(&count, bytes.data(), sizeof(count));
    } else {
      std::memcpy(&elements[piece.offset_elements], bytes.data(), bytes.size());
    }
    return absl::OkStatus();
  }

  double count = 0;
  std::vector<float> elements = std::vector<float>(2 * kElements);
  absl::Status refusal;

 private:
  absl::Mutex mutex_;
};

// Two owners, each with a server of its own.
class StatePullTest : public ::testing::Test {
 protected:
  StatePullTest() {
    for (Rank rank = 0; rank < 2; ++rank) {
      views_[rank].description.member = {"job", "default", rank, 1};
      views_[rank].open = [this, rank](bool) -> absl::StatusOr<std::unique_ptr<ShardSnapshot>> {
        const int time = asked_[rank]++;
        const std::vector<StepNumber>& steps = steps_[rank];
        const size_t last = steps.size() - 1;
        return std::unique_ptr<ShardSnapshot>(std::make_unique<FixedSnapshot>(
            rank, steps[std::min<size_t>(static_cast<size_t>(time), last)]));
      };
      EXPECT_TRUE(registries_[rank].Register("default", rank, &views_[rank]).ok());
      servers_.push_back(*ShardOwnerServer::Start({}, &registries_[rank]));
      owners_.push_back({rank, absl::StrCat("127.0.0.1:", servers_[rank]->port())});
    }
    options_.job = "job";
    options_.timeout = absl::Seconds(20);
  }
  ~StatePullTest() override { servers_.clear(); }

  StatePullOptions options_;
  std::vector<StateOwnerAddress> owners_;
  std::vector<StepNumber> steps_[2] = {{7}, {7}};  // at which each is read, time after time
  std::atomic<int> asked_[2] = {{0}, {0}};
  FakeShardView views_[2];
  Values values_;

 private:
  ShardViewRegistry registries_[2];
  std::vector<std::unique_ptr<ShardOwnerServer>> servers_;
};

TEST_F(StatePullTest, AllOwners_AreInTheirPlaces) {
  std::atomic<int64_t> total{0};
  std::atomic<bool> done{false};
  options_.progress = [&](int64_t now, int64_t all) {
    EXPECT_LE(now, all);
    total = all;
    if (now == all) done = true;
  };
  const absl::StatusOr<PulledStep> pulled = PullState(owners_, values_, options_);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->step, 7);
  EXPECT_EQ(pulled->generation, 3);
  EXPECT_EQ(pulled->bytes, 2 * (8 + 4 * kElements));
  EXPECT_TRUE(done);
  EXPECT_EQ(total, pulled->bytes);
  EXPECT_EQ(values_.count, 4);
  const auto middle = values_.elements.begin() + kElements;
  EXPECT_THAT(std::vector<float>(values_.elements.begin(), middle), Each(1.0f));
  EXPECT_THAT(std::vector<float>(middle, values_.elements.end()), Each(2.0f));
}

TEST_F(StatePullTest, OwnersAtDifferentSteps_AreReadAgain) {
  steps_[0] = {7, 8};
  steps_[1] = {8};
  const absl::StatusOr<PulledStep> pulled = PullState(owners_, values_, options_);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->step, 8);
  EXPECT_EQ(asked_[0], 2);
}

TEST_F(StatePullTest, OwnerThatHasNoMemory_IsNamed_AndNothingStaysPrepared) {
  views_[1].prepare = [](const SnapshotContents&) {
    return absl::ResourceExhaustedError("too little");
  };
  for (int i = 0; i < 20; ++i) {  // more than an owner keeps
    const absl::Status status = PullState(owners_, values_, options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("too little")));
  }
}

TEST_F(StatePullTest, WhatOwnersAreAskedFor_IsWhatTheCallerWants) {
  std::atomic<int> with_parameters{0};
  for (FakeShardView& view : views_) {
    view.prepare = [&](const SnapshotContents& contents) {
      EXPECT_FALSE(contents.keep_copies);
      if (contents.parameters) ++with_parameters;
      return absl::OkStatus();
    };
  }
  options_.keep_copies = false;
  options_.parameters = true;
  EXPECT_TRUE(PullState(owners_, values_, options_).ok());
  EXPECT_EQ(with_parameters, 2);
}

TEST_F(StatePullTest, Hyperparameters_AreTheFirstOwnersWhereTheyAreAskedFor) {
  absl::StatusOr<PulledStep> pulled = PullState(owners_, values_, options_);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_TRUE(pulled->hyperparameters.empty());
  options_.hyperparameters = true;
  pulled = PullState(owners_, values_, options_);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  ASSERT_EQ(pulled->hyperparameters.size(), 2u);
  EXPECT_EQ(pulled->hyperparameters[0].ToString(), "lr=0.5");
  EXPECT_EQ(pulled->hyperparameters[1].ToString(), "lr=0.25");
  EXPECT_EQ(pulled->bytes, 2 * (8 + 4 * kElements));
  EXPECT_EQ(values_.count, 4);
}

TEST_F(StatePullTest, OwnersThatStayAtDifferentSteps_AreNamedAtTheDeadline) {
  steps_[1] = {8};
  options_.timeout = absl::Milliseconds(1500);
  const absl::Status status = PullState(owners_, values_, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("at step 7"), HasSubstr("at step 8")));
}

TEST_F(StatePullTest, OwnerThatIsNotThere_IsNamed) {
  owners_[1].address = "127.0.0.1:1";
  const absl::Status status = PullState(owners_, values_, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the owner of rank 1 at 127.0.0.1:1"));
}

TEST_F(StatePullTest, OwnerOfAnotherJob_IsNotFound) {
  options_.job = "other";
  const absl::Status status = PullState(owners_, values_, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("of job \"job\""));
}

TEST_F(StatePullTest, RefusalOfTheDestination_EndsTheCall) {
  values_.refusal = absl::ResourceExhaustedError("too much");
  const absl::Status status = PullState(owners_, values_, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("too much"));
}

TEST_F(StatePullTest, Cancellation_EndsTheCallWithItsReason) {
  Cancellation cancellation;
  options_.cancellation = &cancellation;
  options_.progress = [&](int64_t, int64_t) {
    cancellation.Cancel(absl::CancelledError("enough"));
  };
  EXPECT_EQ(PullState(owners_, values_, options_).status(), absl::CancelledError("enough"));
}

}  // namespace
}  // namespace optshard
