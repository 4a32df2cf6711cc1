#include "server/shard/state/device_access.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_device.h"

namespace optshard {
namespace {

class DeviceAccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = devices_.Add("cuda:0", "GPU-0");
    updates_ = *device_->NewStream();
    access_ = *DeviceAccess::Create(device_);
    memory_ = *device_->Allocate(kBytes);
    Fill('a');
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

  static constexpr size_t kBytes = 4;

  std::atomic<bool> open_{false};
  std::atomic<int> looks_{0};
  testing::FakeDevices devices_;
  std::shared_ptr<DeviceApi> device_;
  std::shared_ptr<void> updates_;
  std::shared_ptr<void> memory_;
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
  ASSERT_TRUE(access_->BeginUpdates(updates_.get()).ok());
  CloseUpdates();
  EnqueueFill('b');
  ASSERT_TRUE(access_->EndUpdates(updates_.get()).ok());
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
