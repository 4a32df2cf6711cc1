// ReadState: snapshots as streams of frames.
#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/shard/snapshot/shard_snapshot.h"
#include "tests/server/shard/inspection/shard_owner_service_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kElements = 1'200'000;  // three frames
constexpr int kParts = 3;

// Parts of one slot, of which `on_read` says what happens when a part is read.
class FakeSnapshot final : public ShardSnapshot {
 public:
  // Written by threads of the server.
  struct Log {
    std::atomic<bool> closed{false};
    std::atomic<bool> destroyed{false};
  };

  FakeSnapshot(int part_count, std::shared_ptr<Log> log) : log_(std::move(log)) {
    for (int p = 0; p < part_count; ++p) {
      parts_.push_back({7, "exp_avg", StateFormat::kFloat32, p * kElements, kElements});
      states_.push_back(PartState::kLive);
      live_.emplace_back(kElements, 1.0f);
      kept_.emplace_back(kElements, 1.0f);
    }
  }
  ~FakeSnapshot() override { log_->destroyed = true; }

  StepNumber step() const override { return 5; }
  Generation generation() const override { return 2; }
  absl::Span<const Hyperparameters> hyperparameters() const override { return {}; }
  absl::string_view blob() const override { return ""; }
  const std::vector<Part>& parts() const override { return parts_; }
  PartState state(int part) const override { return states_[part]; }
  Bytes Read(int part, int64_t first, int64_t) const override {
    const bool is_live = states_[part] == PartState::kLive;
    if (on_read) on_read(part);
    const std::vector<float>& from = is_live ? live_[part] : kept_[part];
    return {reinterpret_cast<const char*>(&from[first]), nullptr};
  }
  Bytes ReadKept(int part, KeptArray array, int64_t first, int64_t elements) const override {
    if (array == KeptArray::kScales) return {};  // no part is in 8 bits
    return Read(part, first, elements);
  }
  void Close() override { log_->closed = true; }

  void Overwrite(int part, PartState state) const {
    states_[part] = state;
    live_[part].assign(kElements, 2.0f);
  }

  std::function<void(int part)> on_read;

 private:
  const std::shared_ptr<Log> log_;
  std::vector<Part> parts_;
  mutable std::vector<PartState> states_;
  mutable std::vector<std::vector<float>> live_;
  std::vector<std::vector<float>> kept_;
};

class ReadStateTest : public ShardOwnerServiceTest {
 protected:
  void Serve(int part_count, const std::function<void(FakeSnapshot&)>& prepare = {}) {
    view_.open = [this, part_count,
                  prepare](bool keep_copies) -> absl::StatusOr<std::unique_ptr<ShardSnapshot>> {
      asked_for_copies_ = keep_copies;
      auto snapshot = std::make_unique<FakeSnapshot>(part_count, log_);
      if (prepare) prepare(*snapshot);
      return std::unique_ptr<ShardSnapshot>(std::move(snapshot));
    };
    Register();
  }

  void ServeWith(const StateStreamLimits& limits) {
    ShardOwnerServer::Options options;
    options.streams = limits;
    server_ = *ShardOwnerServer::Start(options, &views_);
    stub_ = v1::ShardOwner::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
  }

  // The stub parses the messages: they are ordinary ones.
  grpc::Status ReadAll(std::vector<v1::StateFrame>* frames) {
    const auto context = Context();
    v1::ReadStateRequest request;
    request.set_keep_copies(snapshot_ == 0);
    request.set_snapshot(snapshot_);
    const auto reader = stub_->ReadState(context.get(), request);
    v1::StateFrame frame;
    while (reader->Read(&frame)) {
      const auto values = reinterpret_cast<const float*>(frame.values().data());
      EXPECT_EQ(frame.values().size(), frame.elements() * sizeof(float));
      for (int64_t i = 0; i < frame.elements(); ++i) {
        values_[frame.offset_elements() + i] = values[i];
      }
      frame.clear_values();
      frames->push_back(frame);
    }
    return reader->Finish();
  }

  const std::shared_ptr<FakeSnapshot::Log> log_ = std::make_shared<FakeSnapshot::Log>();
  std::vector<float> values_ = std::vector<float>(kParts * kElements);
  std::atomic<bool> asked_for_copies_{false};
  SnapshotId snapshot_ = 0;  // that is read
};

TEST_F(ReadStateTest, Frames_AreMessagesOfAnyClient) {
  Serve(kParts);
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(asked_for_copies_);
  EXPECT_THAT(frames, SizeIs(3 * kParts));
  for (const v1::StateFrame& frame : frames) {
    EXPECT_EQ(frame.step(), 5);
    EXPECT_EQ(frame.generation(), 2);
    EXPECT_EQ(frame.parameter(), 7);
    EXPECT_EQ(frame.slot(), "exp_avg");
    EXPECT_EQ(frame.format(), v1::STATE_FORMAT_FLOAT32);
    EXPECT_EQ(frame.total_bytes(), kParts * kElements * 4);
  }
  EXPECT_THAT(values_, Each(1.0f));
  EXPECT_TRUE(log_->closed);
}

TEST_F(ReadStateTest, PartThatAStepOverwrites_ComesAgainFromItsCopy) {
  Serve(kParts, [](FakeSnapshot& snapshot) {
    // Part 0 is overwritten after it was sent, part 1 while it is sent, part 2 not at all.
    snapshot.on_read = [&snapshot](int part) {
      if (part == 1) snapshot.Overwrite(0, ShardSnapshot::PartState::kKept);
      if (part == 1) snapshot.Overwrite(1, ShardSnapshot::PartState::kKept);
    };
  });
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(frames, SizeIs(3 * (kParts + 2)));
  EXPECT_THAT(values_, Each(1.0f));
}

TEST_F(ReadStateTest, PartThatIsLost_IsAborted) {
  Serve(kParts, [](FakeSnapshot& snapshot) {
    snapshot.on_read = [&snapshot](int part) {
      if (part == 2) snapshot.Overwrite(0, ShardSnapshot::PartState::kLost);
    };
  });
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the state of step 5"));
  EXPECT_TRUE(log_->closed);
}

// As one on a device whose copy has failed.
TEST_F(ReadStateTest, PartThatIsLostFromTheBeginning_IsAborted) {
  Serve(kParts, [](FakeSnapshot& snapshot) {
    snapshot.Overwrite(kParts - 1, ShardSnapshot::PartState::kLost);
  });
  std::vector<v1::StateFrame> frames;
  EXPECT_EQ(ReadAll(&frames).error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ReadStateTest, OwnerOfNothing_SaysWhichStepItIs) {
  Serve(0);
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(frames, SizeIs(1));
  EXPECT_EQ(frames[0].step(), 5);
  EXPECT_EQ(frames[0].slot(), "");
}

TEST_F(ReadStateTest, SnapshotThatIsRefused_IsTheCallsError) {
  view_.open = [](bool) { return absl::ResourceExhaustedError("too little"); };
  Register();
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "too little");
  view_.open = [](bool) { return absl::DataLossError("torn"); };
  EXPECT_EQ(ReadAll(&frames).error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(ReadStateTest, PreparedSnapshot_IsReadOnce) {
  Serve(kParts);
  v1::PrepareSnapshotRequest prepare;
  v1::PrepareSnapshotResponse prepared;
  prepare.set_snapshot(0);
  EXPECT_EQ(stub_->PrepareSnapshot(Context().get(), prepare, &prepared).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  prepare.set_snapshot(7);
  prepare.set_job("other");
  EXPECT_EQ(stub_->PrepareSnapshot(Context().get(), prepare, &prepared).error_code(),
            grpc::StatusCode::NOT_FOUND);
  prepare.set_job("job");
  EXPECT_TRUE(stub_->PrepareSnapshot(Context().get(), prepare, &prepared).ok());
  snapshot_ = 7;
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(asked_for_copies_) << "as it was prepared";
  EXPECT_THAT(values_, Each(1.0f));
  EXPECT_EQ(ReadAll(&frames).error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ReadStateTest, ForgottenSnapshot_IsNotRead) {
  Serve(kParts);
  v1::PrepareSnapshotRequest prepare;
  v1::PrepareSnapshotResponse prepared;
  prepare.set_snapshot(7);
  EXPECT_TRUE(stub_->PrepareSnapshot(Context().get(), prepare, &prepared).ok());
  v1::ForgetSnapshotRequest forget;
  v1::ForgetSnapshotResponse forgotten;
  forget.set_snapshot(7);
  EXPECT_TRUE(stub_->ForgetSnapshot(Context().get(), forget, &forgotten).ok());
  snapshot_ = 7;
  std::vector<v1::StateFrame> frames;
  EXPECT_EQ(ReadAll(&frames).error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ReadStateTest, OwnerThatStaysInACall_IsSaidAfterItsPatience) {
  StateStreamLimits limits;
  limits.patience_with_calls = absl::Milliseconds(50);
  ServeWith(limits);
  Serve(kParts);
  EXPECT_TRUE((*view_.agreed_snapshots())->Prepare(7, {}).ok());
  (*view_.agreed_snapshots())->Vote(CallEffect::kChanges);
  snapshot_ = 7;
  std::vector<v1::StateFrame> frames;
  const grpc::Status status = ReadAll(&frames);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("another call, was under way for 100ms"));
}

TEST_F(ReadStateTest, ClientThatTakesNothing_LosesItsSnapshot) {
  StateStreamLimits limits;
  limits.patience_with_client = absl::Milliseconds(50);
  ServeWith(limits);
  Serve(kParts);
  const auto context = Context();
  const auto reader = stub_->ReadState(context.get(), v1::ReadStateRequest());
  while (!log_->closed) std::this_thread::yield();
  v1::StateFrame frame;
  while (reader->Read(&frame)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(ReadStateTest, OneStreamTooMany_IsToldToAskAgain) {
  StateStreamLimits limits;
  limits.most = 1;
  ServeWith(limits);
  std::atomic<bool> begun{false};
  absl::Notification go_on;
  Serve(kParts, [&](FakeSnapshot& snapshot) {
    snapshot.on_read = [&](int) {
      begun = true;
      go_on.WaitForNotification();
    };
  });
  std::vector<v1::StateFrame> first;
  std::thread reads([&] { EXPECT_TRUE(ReadAll(&first).ok()); });
  while (!begun) std::this_thread::yield();
  std::vector<v1::StateFrame> second;
  const grpc::Status refused = ReadAll(&second);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("1 clients read state"));
  go_on.Notify();
  reads.join();
  EXPECT_THAT(second, SizeIs(0));
}

TEST_F(ReadStateTest, StreamThatGetsNoThread_IsRefusedAndTheNextOneIsServed) {
  StateStreamLimits limits;
  limits.start_thread = [refused = std::make_shared<std::atomic<bool>>(false)](
                            std::function<void()> run) -> std::thread {
    if (!refused->exchange(true)) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    return std::thread(std::move(run));
  };
  ServeWith(limits);
  Serve(kParts);
  std::vector<v1::StateFrame> frames;
  const grpc::Status refused = ReadAll(&frames);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("cannot start another thread"));
  EXPECT_TRUE(ReadAll(&frames).ok());
}

TEST_F(ReadStateTest, ClientThatGoesAway_LeavesNothingBehind) {
  Serve(kParts);
  {
    const auto context = Context();
    const auto reader = stub_->ReadState(context.get(), v1::ReadStateRequest());
    v1::StateFrame frame;
    ASSERT_TRUE(reader->Read(&frame));
    context->TryCancel();
    while (reader->Read(&frame)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  stub_.reset();  // and its connection
  server_->Stop(absl::Seconds(10));
  EXPECT_TRUE(log_->closed);
  EXPECT_TRUE(log_->destroyed);
}

}  // namespace
}  // namespace optshard::testing
