#include "common/host_transfer.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/fake_device.h"

namespace optshard {
namespace {

// More than both windows, and not a whole number of them.
constexpr size_t kBytes = 3 * HostTransfer::kWindowBytes + 5;

std::string Pattern() {
  std::string pattern(kBytes, ' ');
  for (size_t i = 0; i < kBytes; ++i) pattern[i] = static_cast<char>(i * 2654435761 >> 24);
  return pattern;
}

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(60); }

class HostTransferTest : public ::testing::TestWithParam<bool> {
 protected:
  bool on_device() const { return GetParam(); }
  HostTransfer Make() {
    return *HostTransfer::Create(on_device() ? device_.get() : nullptr, Clock::Monotonic());
  }

  testing::FakeDevices devices_;
  const std::shared_ptr<DeviceApi> device_ = devices_.Add("cuda:0", "GPU-0");
  const std::shared_ptr<void> memory_ = *device_->Allocate(kBytes);
  char* const there_ = static_cast<char*>(memory_.get());
};

TEST_P(HostTransferTest, WhatIsWritten_IsThereAfterFinishAndIsRead) {
  const std::string pattern = Pattern();
  HostTransfer transfer = Make();
  for (const size_t bytes : {size_t{0}, size_t{1}, HostTransfer::kWindowBytes, kBytes}) {
    std::memset(there_, 0, kBytes);
    std::string from = pattern.substr(kBytes - bytes);
    ASSERT_EQ(transfer.Write(there_, from.data(), bytes, Soon()), absl::OkStatus());
    from.assign(bytes, 'x');  // it is of no more use
    ASSERT_EQ(transfer.Finish(Soon()), absl::OkStatus());
    EXPECT_TRUE(std::memcmp(there_, &pattern[kBytes - bytes], bytes) == 0) << bytes;

    std::vector<size_t> pieces;
    std::string read;
    ASSERT_EQ(transfer.Read(there_, bytes, Soon(),
                            [&](absl::string_view piece) {
                              pieces.push_back(piece.size());
                              read.append(piece.data(), piece.size());
                            }),
              absl::OkStatus());
    EXPECT_TRUE(read == pattern.substr(kBytes - bytes)) << bytes;
    ASSERT_EQ(pieces.size(), (bytes + HostTransfer::kWindowBytes - 1) / HostTransfer::kWindowBytes);
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      EXPECT_EQ(pieces[i], HostTransfer::kWindowBytes);
    }
  }
}

// A read after writes that nobody has waited for.
TEST_P(HostTransferTest, Read_IsOfWhatWasWritten) {
  const std::string pattern = Pattern();
  HostTransfer transfer = Make();
  ASSERT_EQ(transfer.Write(there_, pattern.data(), kBytes, Soon()), absl::OkStatus());
  std::string read(kBytes, ' ');
  ASSERT_EQ(transfer.Read(&read[0], there_, kBytes, Soon()), absl::OkStatus());
  EXPECT_TRUE(read == pattern);
}

INSTANTIATE_TEST_SUITE_P(Tensors, HostTransferTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "OnADevice" : "OnTheHost"; });

TEST(HostTransfer, IsBehindWhatIsOnTheStream) {
  testing::FakeDevices devices;
  const std::shared_ptr<DeviceApi> device = devices.Add("cuda:0", "GPU-0");
  const std::shared_ptr<void> stream = *device->NewStream();
  const std::shared_ptr<void> memory = *device->Allocate(1);
  char* const there = static_cast<char*>(memory.get());
  *there = 'a';
  std::atomic<int> looks{0};
  devices.Enqueue(stream.get(), [&] {
    if (++looks < 3) return false;
    *there = 'b';
    return true;
  });
  absl::StatusOr<HostTransfer> transfer = HostTransfer::Create(device.get(), Clock::Monotonic());
  ASSERT_EQ(transfer->OrderBehind(stream.get()), absl::OkStatus());
  char read = ' ';
  ASSERT_EQ(transfer->Read(&read, there, 1, Soon()), absl::OkStatus());
  EXPECT_EQ(read, 'b');
}

TEST(HostTransfer, DeviceThatDoesNothing_IsNamedAtTheDeadline) {
  testing::FakeDevices devices;
  const std::shared_ptr<DeviceApi> device = devices.Add("cuda:3", "GPU-3");
  const std::shared_ptr<void> stream = *device->NewStream();
  const std::shared_ptr<void> memory = *device->Allocate(1);
  std::atomic<bool> open{false};
  devices.Enqueue(stream.get(), [&] { return open.load(); });
  absl::StatusOr<HostTransfer> transfer = HostTransfer::Create(device.get(), Clock::Monotonic());
  ASSERT_EQ(transfer->OrderBehind(stream.get()), absl::OkStatus());
  const absl::Time soon = Clock::Monotonic().Now() + absl::Milliseconds(10);
  ASSERT_EQ(transfer->Write(memory.get(), "x", 1, soon), absl::OkStatus());
  const absl::Status finished = transfer->Finish(soon);
  EXPECT_TRUE(absl::IsDeadlineExceeded(finished)) << finished;
  EXPECT_NE(finished.message().find("cuda:3"), std::string::npos) << finished;
  open = true;
}

}  // namespace
}  // namespace optshard
