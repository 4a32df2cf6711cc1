#include "common/link/segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kMaxBytes = size_t{1} << 62;
// A call that a signal interrupts frees again what it has allocated: short ones come to an end.
constexpr size_t kAllocationBytes = size_t{16} << 20;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL of Linux 6.3

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t WholePages(size_t bytes) { return (bytes + PageBytes() - 1) / PageBytes() * PageBytes(); }

size_t FileBytes(size_t data_bytes) { return WholePages(data_bytes) + PageBytes(); }

absl::Status Failed(const std::string& what, absl::string_view call) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("segment of ", what, ": ", call, " failed"));
}

UniqueFd CreateMemfd(const std::string& name) {
  int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return UniqueFd(fd);
}

absl::Status Allocate(int fd, size_t bytes, const std::string& what) {
  for (size_t begin = 0; begin < bytes; begin += kAllocationBytes) {
    const size_t length = std::min(kAllocationBytes, bytes - begin);
    while (fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(length)) != 0) {
      if (errno == EINTR) continue;
      return Failed(what, absl::StrCat("allocating ", bytes, " bytes (at ", begin, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSeals(int fd, const std::string& what) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    if (errno == EINVAL) return SegmentRefused(what, "the descriptor is no memfd");
    return Failed(what, "asking for its seals");
  }
  if ((seals & kSeals) != kSeals) {
    return SegmentRefused(
        what, absl::StrCat("its seals are 0x", absl::Hex(seals), ", expected 0x", absl::Hex(kSeals),
                           " (no shrinking, growing, sealing)"));
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return SegmentRefused(what, absl::StrCat("its seals 0x", absl::Hex(seals), " forbid writing"));
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return Failed(what, "asking for its flags");
  if ((flags & O_ACCMODE) != O_RDWR) {
    return SegmentRefused(what, "the descriptor is not for writing");
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredLabel> ReadLabel(int fd, const std::string& what) {
  struct stat status;
  if (fstat(fd, &status) != 0) return Failed(what, "fstat");
  StoredLabel label;
  const off_t at = status.st_size - static_cast<off_t>(PageBytes());
  if (at < 0 || pread(fd, &label, sizeof(label), at) != static_cast<ssize_t>(sizeof(label)) ||
      !IsLabel(label) || label.data_bytes > static_cast<uint64_t>(at)) {
    return SegmentRefused(what, "there is no label of optshard in its last page");
  }
  return label;
}

absl::Status CheckLabelOf(int fd, const StoredLabel& expected, const std::string& what) {
  StoredLabel actual;
  const off_t at = static_cast<off_t>(WholePages(expected.data_bytes));
  if (pread(fd, &actual, sizeof(actual), at) != static_cast<ssize_t>(sizeof(actual))) {
    return Failed(what, "reading its label");
  }
  return CheckLabel(actual, expected, what);
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(const SegmentLabel& label, size_t bytes,
                                        const std::string& what, MemoryBudget& budget) {
  if (bytes > kMaxBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("segment of ", what, " needs ", bytes, " bytes, at most ", kMaxBytes, " go"));
  }
  const size_t file_bytes = FileBytes(bytes);
  const absl::Status reserved = budget.Reserve(static_cast<int64_t>(file_bytes), what);
  if (!reserved.ok()) return reserved;

  Segment segment;
  segment.budget_ = &budget;  // from here on the destructor releases
  segment.bytes_ = bytes;
  segment.fd_ = CreateMemfd(absl::StrCat("optshard:", NameOf(label.kind), ":", label.rank));
  const int fd = segment.fd();
  if (fd < 0) return Failed(what, "memfd_create");
  if (ftruncate(fd, static_cast<off_t>(file_bytes)) != 0) return Failed(what, "ftruncate");
  const absl::Status allocated = Allocate(fd, file_bytes, what);
  if (!allocated.ok()) return allocated;
  const StoredLabel stored = Stored(label, bytes);
  if (pwrite(fd, &stored, sizeof(stored), static_cast<off_t>(WholePages(bytes))) !=
      static_cast<ssize_t>(sizeof(stored))) {
    return Failed(what, "writing its label");
  }
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) return Failed(what, "sealing");
  const absl::Status mapped = segment.Map(bytes, what);
  if (!mapped.ok()) return mapped;
  return segment;
}

absl::StatusOr<Segment> Segment::Attach(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                        const std::string& what) {
  if (bytes > kMaxBytes) {
    return SegmentRefused(what, absl::StrCat(bytes, " bytes are expected of it"));
  }
  // Seals before all else: a segment that could shrink later would kill who reads it.
  const absl::Status sealed = CheckSeals(fd.get(), what);
  if (!sealed.ok()) return sealed;
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return Failed(what, "fstat");
  if (static_cast<uint64_t>(status.st_size) != FileBytes(bytes)) {
    return SegmentRefused(
        what, absl::StrCat("its file has ", status.st_size, " bytes, expected ", FileBytes(bytes),
                           " for ", bytes, " bytes and a label"));
  }
  const absl::Status labeled = CheckLabelOf(fd.get(), Stored(expected, bytes), what);
  if (!labeled.ok()) return labeled;

  Segment segment;
  segment.fd_ = std::move(fd);
  const absl::Status mapped = segment.Map(bytes, what);
  if (!mapped.ok()) return mapped;
  return segment;
}

absl::StatusOr<Segment> Segment::Adopt(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                       const std::string& what, MemoryBudget& budget) {
  absl::StatusOr<Segment> segment = Attach(std::move(fd), expected, bytes, what);
  if (!segment.ok()) return segment;
  budget.Adopt(static_cast<int64_t>(FileBytes(bytes)));
  segment->budget_ = &budget;
  return segment;
}

absl::StatusOr<size_t> Segment::BytesOf(int fd, const std::string& what) {
  const absl::StatusOr<StoredLabel> label = ReadLabel(fd, what);
  if (!label.ok()) return label.status();
  return label->data_bytes;
}

absl::StatusOr<SegmentKind> Segment::KindOf(int fd, const std::string& what) {
  const absl::StatusOr<StoredLabel> label = ReadLabel(fd, what);
  if (!label.ok()) return label.status();
  return static_cast<SegmentKind>(label->kind);
}

bool Segment::IsOf(int fd) const {
  struct stat status;
  return fstat(fd, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

absl::Status Segment::Map(size_t bytes, const std::string& what) {
  bytes_ = bytes;
  process_ = getpid();
  struct stat status;
  if (fstat(fd_.get(), &status) != 0) return Failed(what, "fstat");
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (bytes == 0) return absl::OkStatus();
  const size_t length = WholePages(bytes);
  const bool large = length >= kHugePageBytes;

  // Address space first, some more than is needed, so that the data can begin at a huge page.
  const size_t spare = large ? kHugePageBytes : 0;
  void* const space =
      mmap(nullptr, length + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) {
    return Failed(what, absl::StrCat("reserving ", length + spare, " bytes of address space"));
  }
  char* const begin = static_cast<char*>(space);
  const size_t beyond = reinterpret_cast<uintptr_t>(space) % kHugePageBytes;
  const size_t skipped = large && beyond != 0 ? kHugePageBytes - beyond : 0;
  char* const data = begin + skipped;
  void* const mapped =
      mmap(data, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0);
  if (mapped == MAP_FAILED) {
    absl::Status failed = Failed(what, absl::StrCat("mapping ", length, " bytes"));
    munmap(space, length + spare);
    return failed;
  }
  if (skipped > 0) munmap(begin, skipped);
  if (spare > skipped) munmap(data + length, spare - skipped);
  data_ = data;

  if (madvise(data, length, MADV_DONTFORK) != 0) {
    return Failed(what, "keeping it from forked children (MADV_DONTFORK)");
  }
  // Hints, for which a kernel may be too old: huge pages, and no page faults in the first step.
  if (large) (void)madvise(data, length, MADV_HUGEPAGE);
  (void)madvise(data, length, MADV_POPULATE_WRITE);
  return absl::OkStatus();
}

Segment Segment::OnDevice(UniqueFd fd, std::shared_ptr<void> memory, size_t bytes, uint64_t token) {
  Segment segment;
  segment.fd_ = std::move(fd);
  if (bytes > 0) segment.data_ = memory.get();
  segment.bytes_ = bytes;
  segment.process_ = getpid();
  segment.on_device_ = std::move(memory);
  segment.token_ = token;
  return segment;
}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(budget_, other.budget_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(process_, other.process_);
  std::swap(on_device_, other.on_device_);
  std::swap(token_, other.token_);
  return *this;
}

Segment::~Segment() {
  // A forked child does not have it; something else may lie there.
  if (process_ != 0 && getpid() != process_) {
    // Nor may it call the device: what it has of that is never destroyed.
    alignas(std::shared_ptr<void>) static char leaked[sizeof(on_device_)];
    new (leaked) std::shared_ptr<void>(std::move(on_device_));
    return;
  }
  if (data_ != nullptr && on_device_ == nullptr) munmap(data_, WholePages(bytes_));
  if (budget_ != nullptr) budget_->Release(static_cast<int64_t>(FileBytes(bytes_)));
}

}  // namespace optshard
