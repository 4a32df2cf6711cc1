// An owner that has nothing but a number of steps, for tests of the snapshots that owners agree on.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_SNAPSHOT_FAKE_OWNER_STATE_H_
#define OPTSHARD_TESTS_SERVER_SHARD_SNAPSHOT_FAKE_OWNER_STATE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "server/shard/snapshot/agreed_snapshots.h"

namespace optshard::testing {

// What an owner has: the number of the steps that it has applied.
struct State {
  StepNumber step = 0;
  uint64_t skipped = 0;
  Generation content = 1;  // which values there are: a snapshot tells it as its generation
  bool is_changing = false;
  bool is_being_replaced = false;
  absl::Status error;  // of opening
};

class FakeSnapshot final : public ShardSnapshot {
 public:
  explicit FakeSnapshot(const State& state) : step_(state.step), content_(state.content) {}
  StepNumber step() const override { return step_; }
  Generation generation() const override { return content_; }
  absl::Span<const Hyperparameters> hyperparameters() const override { return {}; }
  absl::string_view blob() const override { return ""; }
  const std::vector<Part>& parts() const override { return parts_; }
  PartState state(int) const override { return PartState::kKept; }
  Bytes Read(int, int64_t, int64_t) const override { return {}; }
  Bytes ReadKept(int, KeptArray, int64_t, int64_t) const override { return {}; }
  void Close() override {}

 private:
  const StepNumber step_;
  const Generation content_;
  const std::vector<Part> parts_;
};

class FakePrepared final : public PreparedSnapshot {
 public:
  explicit FakePrepared(const State* state) : state_(*state) {}
  absl::StatusOr<std::unique_ptr<ShardSnapshot>> TryOpen(const BetweenCalls&) override {
    EXPECT_FALSE(state_.is_changing) << "opened in the middle of a step";
    if (state_.is_being_replaced) return absl::AbortedError("replaced");
    if (!state_.error.ok()) return state_.error;
    return std::make_unique<FakeSnapshot>(state_);
  }

 private:
  const State& state_;
};

inline AgreedSnapshots::Options OptionsOf(const State* state) {
  AgreedSnapshots::Options options;
  options.prepare =
      [state](const SnapshotContents&) -> absl::StatusOr<std::unique_ptr<PreparedSnapshot>> {
    return std::make_unique<FakePrepared>(state);
  };
  return options;
}

inline BetweenCalls After(StepNumber finished, uint64_t skipped = 0) {
  BetweenCalls now;
  now.finished = finished;
  now.skipped = skipped;
  return now;
}

constexpr absl::Duration kNow = absl::ZeroDuration();

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_SNAPSHOT_FAKE_OWNER_STATE_H_
