// Segments in memory of a fake device, which two processes have, as it were.
#include "common/link/device_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_device.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 5000;
const SegmentLabel kLabel = LabelOf(SegmentKind::kSlots, 3, 0x77);

UniqueFd Duplicate(const Segment& segment) {
  return UniqueFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
}

class DeviceSegmentsTest : public ::testing::Test {
 protected:
  FakeDevices devices_;
  const DeviceSegments here_{devices_.Add("fake:0", "GPU-0")};
  FakeDevices others_;
  const DeviceSegments there_{others_.Add("fake:1", "GPU-0")};
};

TEST_F(DeviceSegmentsTest, Created_IsZerosAndOneMemoryForBothEnds) {
  absl::StatusOr<Segment> made = here_.Create(kLabel, kBytes, "a test");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(std::string(static_cast<const char*>(made->data()), kBytes), std::string(kBytes, 0));
  absl::StatusOr<Segment> opened = there_.Open(Duplicate(*made), kLabel, kBytes, "a test");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->bytes(), kBytes);
  EXPECT_NE(opened->data(), made->data());
  std::memset(opened->data(), 5, kBytes);
  EXPECT_EQ(std::string(static_cast<const char*>(made->data()), kBytes), std::string(kBytes, 5));
  // Whoever has made it.
  *made = Segment();
  EXPECT_EQ(*static_cast<const char*>(opened->data()), 5);
}

TEST_F(DeviceSegmentsTest, WithoutBytes_HasALabelAllTheSame) {
  const absl::StatusOr<Segment> made = here_.Create(kLabel, 0, "a test");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->data(), nullptr);
  EXPECT_TRUE(there_.Open(Duplicate(*made), kLabel, 0, "a test").ok());
}

TEST_F(DeviceSegmentsTest, OfSomethingElse_IsRefusedWithTheDifference) {
  const Segment made = here_.Create(kLabel, kBytes, "a test").value();
  const auto refused = [&](const SegmentLabel& label, size_t bytes) {
    const absl::Status status = there_.Open(Duplicate(made), label, bytes, "the state").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the state"));
    return std::string(status.message());
  };
  EXPECT_THAT(refused(LabelOf(SegmentKind::kGradients, 3, 0x77), kBytes),
              HasSubstr("its kind is 5 (slots), expected 2 (gradients)"));
  EXPECT_THAT(refused(LabelOf(SegmentKind::kSlots, 4, 0x77), kBytes),
              HasSubstr("its rank is 3, expected 4"));
  EXPECT_THAT(refused(LabelOf(SegmentKind::kSlots, 3, 0x78), kBytes), HasSubstr("layout digest"));
  // In as many pages, and in more.
  EXPECT_THAT(refused(kLabel, kBytes + 1), HasSubstr("its number of bytes is 5000, expected 5001"));
  EXPECT_THAT(refused(kLabel, 2 * kBytes), HasSubstr("fake:1"));
  EXPECT_THAT(refused(kLabel, ~size_t{0}), HasSubstr("bytes are expected of it"));
}

TEST_F(DeviceSegmentsTest, MemoryWithoutALabel_IsRefused) {
  constexpr size_t kPages = 3 * 4096;  // of kBytes, with a label's
  UniqueFd memory(memfd_create("none", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), kPages), 0);
  const absl::Status status = here_.Open(std::move(memory), kLabel, kBytes, "a test").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no label of optshard"));
}

TEST_F(DeviceSegmentsTest, Descriptor_IsOfItsOwnSegmentAlone) {
  const Segment one = here_.Create(kLabel, kBytes, "a test").value();
  const Segment other = here_.Create(kLabel, kBytes, "a test").value();
  const Segment same = there_.Open(Duplicate(one), kLabel, kBytes, "a test").value();
  EXPECT_TRUE(here_.IsOf(one, one.fd()).value());
  EXPECT_TRUE(there_.IsOf(same, one.fd()).value());
  EXPECT_FALSE(there_.IsOf(same, other.fd()).value());
  EXPECT_FALSE(there_.IsOf(same, -1).value());
  UniqueFd nothing(memfd_create("none", MFD_CLOEXEC));
  EXPECT_FALSE(there_.IsOf(same, nothing.get()).value());
}

TEST_F(DeviceSegmentsTest, DeviceThatFails_IsAnErrorThatNamesTheSegment) {
  const Segment made = here_.Create(kLabel, kBytes, "a test").value();
  const Segment opened = there_.Open(Duplicate(made), kLabel, kBytes, "a test").value();
  others_.Fail(absl::InternalError("an illegal address"));
  EXPECT_TRUE(absl::IsInternal(there_.IsOf(opened, made.fd()).status()));
  for (const absl::Status& status :
       {there_.Create(kLabel, kBytes, "the state").status(),
        there_.Open(Duplicate(made), kLabel, kBytes, "the state").status()}) {
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the state on fake:1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("an illegal address"));
  }
}

}  // namespace
}  // namespace optshard::testing
