// Memory that is read soon, fetched a few cache lines at a time by a loop that is busy with
// arithmetic meanwhile.
#ifndef OPTSHARD_COMMON_LINES_AHEAD_H_
#define OPTSHARD_COMMON_LINES_AHEAD_H_

#include <cstddef>
#include <cstdint>

#include "common/cache_line.h"

namespace optshard {

// Into the second-level cache, where they are not in the way of what the loop works on. All at once
// they would wait for each other. Calls nothing of the standard library: loops are compiled for one
// instruction set. Thread-compatible.
class LinesAhead {
 public:
  // Nothing is read: it is only a hint. Arrays after the first kMostArrays are ignored.
  void Add(const void* begin, int64_t bytes) {
    if (count_ == kMostArrays || bytes <= 0) return;
    arrays_[count_++] = {static_cast<const char*>(begin), bytes};
    lines_ += (bytes + kLine - 1) / kLine;
  }

  // So many calls of FetchSome have fetched everything.
  void SpreadOver(int64_t calls) { lines_a_call_ = calls > 0 ? (lines_ + calls - 1) / calls : 0; }

  void FetchSome() {
    for (int64_t k = 0; k < lines_a_call_; ++k) {
      if (left_ <= 0) {
        if (next_ == count_) return;
        at_ = arrays_[next_].begin;
        left_ = arrays_[next_++].bytes;
      }
      __builtin_prefetch(at_, /*rw=*/0, /*locality=*/2);
      at_ += kLine;
      left_ -= kLine;
    }
  }

 private:
  static constexpr size_t kMostArrays = 16;
  static constexpr int64_t kLine = kCacheLineBytes;

  struct Array {
    const char* begin;
    int64_t bytes;
  };

  Array arrays_[kMostArrays];
  size_t count_ = 0;
  int64_t lines_ = 0;
  int64_t lines_a_call_ = 0;
  size_t next_ = 0;  // of arrays_
  const char* at_ = nullptr;
  int64_t left_ = 0;  // bytes from at_ on
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINES_AHEAD_H_
