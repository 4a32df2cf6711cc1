#include "server/shard/state/device_access.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_device.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

class DeviceAccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = devices_.Add("cuda:0", "GPU-0");
    updates_ = *device_->NewStream();
    access_ = *DeviceAccess::Create(device_);
    memory_ = *device_->Allocate(kBytes);
    Fill('a');
    copy_ = std::static_pointer_cast<char>(*device_->AllocateOnHost(kBytes));
    std::memset(copy_.get(), '.', kBytes);
  }

  void Fill(char value) { std::memset(memory_.get(), value, kBytes); }
  void EnqueueFill(char value) {
    devices_.Enqueue(updates_.get(), [this, value] {
      Fill(value);
      return true;
    });
  }

  // What is enqueued behind it waits for open_.
  void CloseUpdates() {
    devices_.Enqueue(updates_.get(), [this] {
      ++looks_;
      return open_.load();
    });
  }
  // An update that waits for open_.
  void EnqueueClosedFill(char value) {
    ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
    CloseUpdates();
    EnqueueFill(value);
    ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  }
  // Until somebody waits for the device.
  void AwaitLook() const {
    while (looks_ == 0) std::this_thread::yield();
  }

  // What the memory has, or "again".
  absl::StatusOr<std::string> Read(uint64_t version) {
    std::string read = "again";
    const absl::StatusOr<bool> done = access_->TryRead(
        version, {{memory_.get(), 64, kBytes}}, Clock::Monotonic().Now() + absl::Seconds(60),
        [&](const char* window) { read.assign(window + 64, kBytes); });
    if (!done.ok()) return done.status();
    EXPECT_EQ(*done, read != "again");
    return read;
  }

  // To copy_.
  absl::StatusOr<std::shared_ptr<const DeviceCopy>> TryBeginCopy(
      uint64_t version, absl::optional<void*> trainers = absl::nullopt) {
    return access_->BeginCopy(version, {{memory_.get(), 0, kBytes}}, copy_, trainers);
  }
  std::shared_ptr<const DeviceCopy> BeginCopy(uint64_t version,
                                              absl::optional<void*> trainers = absl::nullopt) {
    return TryBeginCopy(version, trainers).value();
  }
  std::string Copied() const { return {copy_.get(), kBytes}; }

  absl::Status WriteAll(const char* values) {
    const absl::Time deadline = Clock::Monotonic().Now() + absl::Seconds(60);
    return access_->Write(deadline, [&](HostTransfer& transfer) {
      return transfer.Write(memory_.get(), values, kBytes, deadline);
    });
  }

  static constexpr size_t kBytes = 4;

  std::atomic<bool> open_{false};
  std::atomic<int> looks_{0};
  testing::FakeDevices devices_;
  std::shared_ptr<DeviceApi> device_;
  std::shared_ptr<void> updates_;
  std::shared_ptr<void> memory_;
  std::shared_ptr<char> copy_;
  std::unique_ptr<DeviceAccess> access_;
};

TEST_F(DeviceAccessTest, Read_IsBehindTheUpdatesOfItsVersion) {
  EXPECT_EQ(*Read(*access_->version()), "aaaa");
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  EnqueueFill('b');
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  EXPECT_EQ(*Read(*access_->version()), "bbbb");
}

TEST_F(DeviceAccessTest, UpdatesThatAreBeingEnqueued_AreNotReadAndNotWaitedFor) {
  const uint64_t before = *access_->version();
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  EXPECT_FALSE(access_->version().has_value());
  EXPECT_EQ(*Read(before), "again");
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  EXPECT_EQ(*Read(before), "again");
  EXPECT_EQ(*Read(*access_->version()), "aaaa");
}

// The read waits for an update that is under way, and the next update waits for the read, on the
// device: the host enqueues both at once.
TEST_F(DeviceAccessTest, ReadThatHasBegun_IsBeforeTheNextUpdates) {
  EnqueueClosedFill('b');
  std::thread reader([&, version = *access_->version()] { EXPECT_EQ(*Read(version), "bbbb"); });
  // Nobody else looks: then its copy is enqueued.
  AwaitLook();

  const std::shared_ptr<void> others = *device_->NewStream();
  ASSERT_TRUE(access_->BeginUpdates(others.get()).ok());
  std::atomic<bool> updated{false};
  devices_.Enqueue(others.get(), [&] {
    Fill('c');
    return updated = true;
  });
  ASSERT_TRUE(access_->EndUpdates(others.get()).ok());
  devices_.RunWhatCanRun();
  EXPECT_FALSE(updated);
  open_ = true;
  reader.join();
  devices_.RunWhatCanRun();
  EXPECT_TRUE(updated);
}

TEST_F(DeviceAccessTest, Write_IsBehindUpdatesThatAreUnderWay) {
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  constexpr int kLooks = 10;  // more than a write takes
  devices_.Enqueue(updates_.get(), [this] { return ++looks_ == kLooks; });
  EnqueueFill('b');
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  ASSERT_EQ(WriteAll("cccc"), absl::OkStatus());
  EXPECT_EQ(looks_, kLooks);
  EXPECT_EQ(*Read(*access_->version()), "cccc");
}

TEST_F(DeviceAccessTest, Write_IsBehindReadsThatAreUnderWay) {
  EnqueueClosedFill('b');
  const uint64_t version = *access_->version();
  std::thread reader([&] { EXPECT_EQ(*Read(version), "bbbb"); });
  AwaitLook();
  std::thread writer([&] { EXPECT_EQ(WriteAll("cccc"), absl::OkStatus()); });
  while (access_->version().has_value()) std::this_thread::yield();
  open_ = true;
  reader.join();
  writer.join();
  EXPECT_EQ(*Read(version), "again");
  EXPECT_EQ(*Read(*access_->version()), "cccc");
}

// It changes nothing of what is known of the updates before it.
TEST_F(DeviceAccessTest, Write_EndsAsTheUpdatesBeforeItDo) {
  absl::Status plane;
  access_->ExpectUpdatesWhile([&] { return plane; });
  ASSERT_EQ(WriteAll("bbbb"), absl::OkStatus());
  plane = absl::UnavailableError("rank 2 is lost");
  EXPECT_EQ(*Read(*access_->version()), "bbbb");
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  ASSERT_EQ(WriteAll("cccc"), absl::OkStatus());
  EXPECT_EQ(Read(*access_->version()).status(), plane);
}

TEST_F(DeviceAccessTest, WriteThatFails_LeavesStateOfNoStep) {
  const auto fail = [](HostTransfer&) { return absl::DeadlineExceededError("too slow"); };
  const uint64_t before = *access_->version();
  const absl::Status failed = access_->Write(absl::InfiniteFuture(), fail);
  EXPECT_TRUE(absl::IsDeadlineExceeded(failed)) << failed;
  EXPECT_NE(failed.message().find("too slow"), std::string::npos) << failed;
  EXPECT_FALSE(access_->version().has_value());
  // Nor is it updated: what is there is of no step.
  EXPECT_EQ(access_->BeginUpdates(updates_.get()), failed);
  EXPECT_EQ(WriteAll("cccc"), failed);
  EXPECT_EQ(Read(before).status(), failed);
  EXPECT_EQ(access_->BeginCopy(before, {}, copy_).status(), failed);
  EXPECT_EQ(access_->CheckWritten(), failed);
}

TEST_F(DeviceAccessTest, CopyThatHasBegun_IsBetweenTheUpdatesAndWaitsForNothing) {
  EnqueueClosedFill('b');
  const std::shared_ptr<const DeviceCopy> copy = BeginCopy(*access_->version());
  const std::shared_ptr<void> others = *device_->NewStream();
  ASSERT_TRUE(access_->BeginUpdates(others.get()).ok());
  bool updated = false;
  devices_.Enqueue(others.get(), [&] {
    Fill('c');
    return updated = true;
  });
  ASSERT_TRUE(access_->EndUpdates(others.get()).ok());
  devices_.RunWhatCanRun();
  EXPECT_FALSE(updated);
  EXPECT_EQ(Copied(), "....");
  open_ = true;
  EXPECT_TRUE(copy->IsThere());
  EXPECT_EQ(Copied(), "bbbb");
  devices_.RunWhatCanRun();
  EXPECT_TRUE(updated);
}

TEST_F(DeviceAccessTest, CopyOfWhatIsNotTheVersion_DoesNotBegin) {
  const uint64_t before = *access_->version();
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  EXPECT_TRUE(absl::IsAborted(TryBeginCopy(before).status()));
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  EXPECT_TRUE(absl::IsAborted(TryBeginCopy(before).status()));
  EXPECT_NE(BeginCopy(*access_->version()), nullptr);
}

// What the trainer has put on its stream is copied, and what it puts there later is not.
TEST_F(DeviceAccessTest, CopyOfWhatTheTrainerWrites_IsInTheOrderOfItsStream) {
  const std::shared_ptr<void> trainers = *device_->NewStream();
  devices_.Enqueue(trainers.get(), [&] { return open_.load(); });
  devices_.Enqueue(trainers.get(), [&] {
    Fill('b');
    return true;
  });
  const std::shared_ptr<const DeviceCopy> copy = BeginCopy(*access_->version(), trainers.get());
  bool written = false;
  devices_.Enqueue(trainers.get(), [&] {
    Fill('c');
    return written = true;
  });
  devices_.RunWhatCanRun();
  EXPECT_FALSE(written);
  open_ = true;
  EXPECT_TRUE(copy->IsThere());
  EXPECT_EQ(Copied(), "bbbb");
  devices_.RunWhatCanRun();
  EXPECT_TRUE(written);
}

// It is decided once: what is there stays there, and what is lost does not come back.
TEST_F(DeviceAccessTest, CopyOfUpdatesThatNobodyMakes_IsLost) {
  absl::Status plane;
  access_->ExpectUpdatesWhile([&] { return plane; });
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  EXPECT_TRUE(access_->AreUnderWay());
  const std::shared_ptr<const DeviceCopy> early = BeginCopy(*access_->version());
  const std::shared_ptr<const DeviceCopy> late = BeginCopy(*access_->version());
  EXPECT_TRUE(early->IsThere());
  plane = absl::UnavailableError("rank 2 is lost");
  EXPECT_FALSE(access_->AreUnderWay());
  EXPECT_TRUE(early->IsThere());
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(late->IsThere());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("what was copied from cuda:0 is lost: UNAVAILABLE: rank 2 is lost"));
  plane = absl::OkStatus();
  access_->UpdatesHaveEnded();
  EXPECT_FALSE(access_->AreUnderWay());
  EXPECT_FALSE(late->IsThere());
}

// Where a rank is lost, updates end without having been made.
TEST_F(DeviceAccessTest, UpdatesThatHaveNotEndedWhenThePlaneBreaks_AreNotRead) {
  absl::Status plane;
  access_->ExpectUpdatesWhile([&] { return plane; });
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  EXPECT_EQ(*Read(*access_->version()), "aaaa");
  plane = absl::UnavailableError("rank 2 is lost");
  EXPECT_EQ(Read(*access_->version()).status(), plane);
  access_->UpdatesHaveEnded();
  EXPECT_EQ(*Read(*access_->version()), "aaaa");
}

TEST_F(DeviceAccessTest, ReaderBehindOneWhoWaits_GivesUpAtItsDeadline) {
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  CloseUpdates();
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
  const uint64_t version = *access_->version();
  std::thread first([&] { EXPECT_EQ(*Read(version), "aaaa"); });
  AwaitLook();
  const absl::StatusOr<bool> second = access_->TryRead(
      version, {}, Clock::Monotonic().Now() + absl::Milliseconds(10), [](char*) {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(second.status())) << second.status();
  open_ = true;
  first.join();
}

TEST_F(DeviceAccessTest, DeviceThatFails_IsTheError) {
  const uint64_t version = *access_->version();
  const absl::Status broken = absl::InternalError("an illegal memory access");
  devices_.Fail(broken);
  EXPECT_EQ(Read(version).status(), broken);
  EXPECT_EQ(access_->BeginUpdates(updates_.get()), broken);
}

}  // namespace
}  // namespace optshard
