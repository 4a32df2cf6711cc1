#include "common/link/memory_budget.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace optshard {
namespace {

std::string Bytes(int64_t bytes) {
  return absl::StrFormat("%d bytes (%.2f GiB)", bytes,
                         static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
}

}  // namespace

MemoryBudget::MemoryBudget(absl::optional<int64_t> limit_bytes,
                           std::function<absl::optional<int64_t>()> headroom)
    : limit_bytes_(limit_bytes), headroom_(std::move(headroom)) {}

absl::Status MemoryBudget::Reserve(int64_t bytes, absl::string_view what) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot reserve ", bytes, " bytes for ", what, ": at least 0 is needed"));
  }
  const absl::optional<int64_t> headroom = headroom_();
  if (headroom.has_value() && bytes > *headroom) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " needs ", Bytes(bytes), ", but the memory left to this process is ",
        Bytes(*headroom),
        " (its cgroups' limits and the machine's available memory): nothing was allocated; raise "
        "the cgroup's limit, free memory, or spread the job over more nodes"));
  }
  absl::MutexLock lock(&mutex_);
  if (limit_bytes_.has_value() && bytes > *limit_bytes_ - reserved_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " needs ", Bytes(bytes), ", but the memory limit is ", Bytes(*limit_bytes_), ", ",
        Bytes(reserved_bytes_),
        " of it taken already: nothing was allocated; raise the limit, or spread the job over "
        "more nodes"));
  }
  reserved_bytes_ += bytes;
  return absl::OkStatus();
}

void MemoryBudget::Adopt(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  reserved_bytes_ += bytes;
}

void MemoryBudget::Release(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  reserved_bytes_ -= bytes;
}

int64_t MemoryBudget::reserved_bytes() const {
  absl::MutexLock lock(&mutex_);
  return reserved_bytes_;
}

MemoryBudget& MemoryBudget::Unlimited() {
  static MemoryBudget* const budget = new MemoryBudget;  // outlives every static that uses it
  return *budget;
}

}  // namespace optshard
