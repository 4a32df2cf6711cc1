#include "common/link/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link/protocol_version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr SegmentLabel kLabel = {SegmentKind::kGradients, 3, 5, 0xabcdef};
constexpr size_t kBytes = 10000;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t LabelAt(size_t bytes) { return (bytes + PageBytes() - 1) / PageBytes() * PageBytes(); }

UniqueFd Duplicate(const Segment& segment) {
  return UniqueFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
}

Segment Created(const SegmentLabel& label = kLabel, size_t bytes = kBytes) {
  absl::StatusOr<Segment> segment = Segment::Create(label, bytes, "gradients of rank 3");
  EXPECT_TRUE(segment.ok()) << segment.status();
  return segment.ok() ? *std::move(segment) : Segment();
}

absl::Status AttachStatus(UniqueFd fd, const SegmentLabel& label = kLabel, size_t bytes = kBytes) {
  return Segment::Attach(std::move(fd), label, bytes, "gradients of rank 3").status();
}

TEST(Segment, Create_AnySize_IsZerosFromABoundaryOn) {
  for (const size_t bytes : {size_t{1}, PageBytes(), kBytes, kHugePageBytes, kHugePageBytes + 1}) {
    const Segment segment = Created(kLabel, bytes);
    ASSERT_NE(segment.data(), nullptr);
    ASSERT_EQ(segment.bytes(), bytes);
    const size_t boundary = bytes >= kHugePageBytes ? kHugePageBytes : PageBytes();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.data()) % boundary, 0u);
    const char* const data = static_cast<const char*>(segment.data());
    for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(data[i], 0) << i;
    std::memset(segment.data(), 1, bytes);
  }
}

TEST(Segment, Create_AnySize_IsAllocatedInFull) {
  const Segment segment = Created();
  struct stat status;
  ASSERT_EQ(fstat(segment.fd(), &status), 0);
  EXPECT_EQ(static_cast<size_t>(status.st_size), LabelAt(kBytes) + PageBytes());
  EXPECT_EQ(status.st_blocks * 512, status.st_size);
}

TEST(Segment, Create_Done_NeitherShrinksNorGrows) {
  const Segment segment = Created();
  EXPECT_NE(ftruncate(segment.fd(), 0), 0);
  EXPECT_NE(ftruncate(segment.fd(), 1 << 20), 0);
  EXPECT_NE(fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_NE(fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, Create_NoBytes_HasALabelAlone) {
  const Segment segment = Created(kLabel, 0);
  EXPECT_EQ(segment.data(), nullptr);
  const absl::StatusOr<Segment> attached = Segment::Attach(Duplicate(segment), kLabel, 0, "none");
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->data(), nullptr);
}

TEST(Segment, Create_BeyondTheBudget_AllocatesNothing) {
  MemoryBudget budget(1000, [] { return absl::nullopt; });
  const absl::Status status =
      Segment::Create(kLabel, kBytes, "gradients of rank 3", budget).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("gradients of rank 3"), HasSubstr("1000 bytes")));
  EXPECT_EQ(budget.reserved_bytes(), 0);
}

TEST(Segment, Create_Absurd_IsRefused) {
  const absl::Status status = Segment::Create(kLabel, ~size_t{0}, "all memory").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(Segment, Destroyed_AfterMoves_ReleasesTheBudgetOnce) {
  MemoryBudget budget(1 << 20, [] { return absl::nullopt; });
  {
    absl::StatusOr<Segment> created = Segment::Create(kLabel, kBytes, "a", budget);
    ASSERT_TRUE(created.ok());
    EXPECT_EQ(budget.reserved_bytes(), static_cast<int64_t>(LabelAt(kBytes) + PageBytes()));
    void* const data = created->data();
    Segment moved = *std::move(created);
    Segment assigned;
    assigned = std::move(moved);
    EXPECT_EQ(assigned.data(), data);
    EXPECT_GT(budget.reserved_bytes(), 0);
  }
  EXPECT_EQ(budget.reserved_bytes(), 0);
}

TEST(Segment, Attach_SameLabel_SharesTheMemory) {
  for (const size_t bytes : {kBytes, kHugePageBytes + 1}) {
    const Segment segment = Created(kLabel, bytes);
    const absl::StatusOr<Segment> attached =
        Segment::Attach(Duplicate(segment), kLabel, bytes, "gradients of rank 3");
    ASSERT_TRUE(attached.ok()) << attached.status();
    ASSERT_NE(attached->data(), segment.data());
    EXPECT_EQ(attached->bytes(), bytes);
    static_cast<char*>(segment.data())[bytes - 1] = 42;
    EXPECT_EQ(static_cast<char*>(attached->data())[bytes - 1], 42);
    static_cast<char*>(attached->data())[0] = 43;
    EXPECT_EQ(static_cast<char*>(segment.data())[0], 43);
  }
}

TEST(Segment, Adopt_BeyondTheBudget_CountsAllTheSame) {
  const Segment segment = Created();
  MemoryBudget budget(1);
  {
    const absl::StatusOr<Segment> adopted =
        Segment::Adopt(Duplicate(segment), kLabel, kBytes, "gradients of rank 3", budget);
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    EXPECT_EQ(budget.reserved_bytes(), static_cast<int64_t>(LabelAt(kBytes) + PageBytes()));
    static_cast<char*>(segment.data())[7] = 'x';
    EXPECT_EQ(static_cast<const char*>(adopted->data())[7], 'x');
    EXPECT_TRUE(adopted->IsOf(segment.fd()));
  }
  EXPECT_EQ(budget.reserved_bytes(), 0);
}

TEST(Segment, IsOf_AnotherSegment_IsFalse) {
  const Segment segment = Created();
  const Segment other = Created();
  EXPECT_TRUE(segment.IsOf(Duplicate(segment).get()));
  EXPECT_FALSE(segment.IsOf(other.fd()));
  EXPECT_FALSE(segment.IsOf(-1));
}

TEST(Segment, BytesOf_AnySize_AreThoseOfItsLabel) {
  for (const size_t bytes : {size_t{1}, PageBytes(), kBytes}) {
    const absl::StatusOr<size_t> read = Segment::BytesOf(Created(kLabel, bytes).fd(), "it");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, bytes);
  }
  const UniqueFd empty(memfd_create("empty", MFD_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::BytesOf(empty.get(), "it").status()));
}

TEST(Segment, CloseDescriptor_Done_LeavesTheMapping) {
  Segment segment = Created();
  const Segment attached =
      *Segment::Attach(Duplicate(segment), kLabel, kBytes, "gradients of rank 3");
  segment.CloseDescriptor();
  EXPECT_EQ(segment.fd(), -1);
  static_cast<char*>(segment.data())[0] = 1;
  EXPECT_EQ(static_cast<char*>(attached.data())[0], 1);
}

struct WrongLabel {
  const char* name;
  SegmentLabel expected;
  std::string says;
};

class SegmentOfAnotherLabel : public ::testing::TestWithParam<WrongLabel> {};

TEST_P(SegmentOfAnotherLabel, Attach_OneFieldDiffers_NamesBothSides) {
  const Segment segment = Created();
  const absl::Status status = AttachStatus(Duplicate(segment), GetParam().expected);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("segment of gradients of rank 3 refused: its ", GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, SegmentOfAnotherLabel,
    ::testing::Values(
        WrongLabel{"Kind",
                   {SegmentKind::kMailbox, 3, 5, 0xabcdef},
                   "kind is 2 (gradients), expected 3 (mailbox)"},
        WrongLabel{"Rank", {SegmentKind::kGradients, 4, 5, 0xabcdef}, "rank is 3, expected 4"},
        WrongLabel{
            "Generation", {SegmentKind::kGradients, 3, 6, 0xabcdef}, "generation is 5, expected 6"},
        WrongLabel{"Digest",
                   {SegmentKind::kGradients, 3, 5, 0xabcdee},
                   "layout digest is 0x0000000000abcdef, expected 0x0000000000abcdee"}),
    [](const auto& info) { return info.param.name; });

// A label that was written over: `value` in place of what stands `at` bytes into it.
template <typename T>
absl::Status AttachedWith(off_t at, T value) {
  const Segment segment = Created();
  const off_t where = static_cast<off_t>(LabelAt(kBytes)) + at;
  EXPECT_EQ(pwrite(segment.fd(), &value, sizeof(value), where),
            static_cast<ssize_t>(sizeof(value)));
  return AttachStatus(Duplicate(segment));
}

TEST(Segment, Attach_NoMagic_IsRefused) {
  const absl::Status status = AttachedWith(0, uint64_t{0});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no label of optshard"));
}

TEST(Segment, Attach_AnotherProtocolVersion_NamesBoth) {
  const absl::Status status = AttachedWith(8, kLinkProtocolVersion + 8);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("protocol version is 9, expected 1"));
}

TEST(Segment, Attach_AnotherNumberOfBytesInTheSamePages_NamesBoth) {
  const Segment segment = Created();
  const absl::Status status = AttachStatus(Duplicate(segment), kLabel, kBytes + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("number of bytes is 10000, expected 10001"));
}

TEST(Segment, Attach_AnotherNumberOfPages_NamesBothSizes) {
  const Segment segment = Created();
  const absl::Status status = AttachStatus(Duplicate(segment), kLabel, kBytes + PageBytes());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("its file has ", LabelAt(kBytes) + PageBytes())),
                    HasSubstr(absl::StrCat("expected ", LabelAt(kBytes) + 2 * PageBytes()))));
}

TEST(Segment, Attach_Unsealed_IsRefused) {
  UniqueFd fd(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(LabelAt(kBytes) + PageBytes())), 0);
  const absl::Status status = AttachStatus(std::move(fd));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its seals are 0x0, expected 0x7"));
}

TEST(Segment, Attach_SealedAgainstWriting_IsRefused) {
  UniqueFd fd(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(LabelAt(kBytes) + PageBytes())), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE),
            0);
  const absl::Status status = AttachStatus(std::move(fd));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("forbid writing"));
}

TEST(Segment, Attach_ReadOnlyDescriptor_IsRefused) {
  const Segment segment = Created();
  UniqueFd fd(open(absl::StrCat("/proc/self/fd/", segment.fd()).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd.valid());
  const absl::Status status = AttachStatus(std::move(fd));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not for writing"));
}

TEST(Segment, Attach_NoMemfd_IsRefused) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd other_end(ends[1]);
  EXPECT_EQ(AttachStatus(UniqueFd(ends[0])).code(), absl::StatusCode::kInvalidArgument);

  std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/file_XXXXXX");
  UniqueFd file(mkostemp(&path[0], O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(LabelAt(kBytes) + PageBytes())), 0);
  EXPECT_EQ(AttachStatus(std::move(file)).code(), absl::StatusCode::kInvalidArgument);
  unlink(path.c_str());
}

TEST(Segment, Attach_NoDescriptor_IsAnError) { EXPECT_FALSE(AttachStatus(UniqueFd()).ok()); }

TEST(Segment, Attach_InAnotherProcess_SharesTheMemory) {
  const Segment segment = Created();
  testing::Child child([&] {
    const absl::StatusOr<Segment> attached =
        Segment::Attach(Duplicate(segment), kLabel, kBytes, "gradients of rank 3");
    if (!attached.ok()) return 1;
    std::memset(attached->data(), 7, kBytes);
    return 0;
  });
  ASSERT_EQ(child.Wait(), 0);
  EXPECT_EQ(static_cast<char*>(segment.data())[kBytes - 1], 7);
}

TEST(Segment, Fork_ChildReads_DiesOfIt) {
  const Segment created = Created();
  const absl::StatusOr<Segment> attached =
      Segment::Attach(Duplicate(created), kLabel, kBytes, "gradients of rank 3");
  ASSERT_TRUE(attached.ok());
  for (const Segment* segment : {&created, &*attached}) {
    testing::Child child([&] { return *static_cast<volatile char*>(segment->data()); });
    EXPECT_EQ(child.Wait(), -SIGSEGV);
  }
}

}  // namespace
}  // namespace optshard
