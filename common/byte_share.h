// Bytes that the ranks give each other between steps: what optimizer state travels as, from owners
// to whoever asks for all of it, and back.
#ifndef OPTSHARD_COMMON_BYTE_SHARE_H_
#define OPTSHARD_COMMON_BYTE_SHARE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/request_limits.h"

namespace optshard {

// What the ranks are about, for the error of a rank that is about something else. The numbers
// travel.
enum class ShareCall : uint32_t { kConsolidate = 1, kLoad = 2 };

// As `from` of a ByteShare: each rank gives as many bytes.
constexpr Rank kFromEveryRank = -1;

// At most this much at a time, of all ranks together: what a doorbell has room for.
constexpr int64_t kMaxShareBytes = 128 << 10;

// One exchange, of all ranks together, which give the same but for the bytes' values.
struct ByteShare {
  ShareCall call = ShareCall::kConsolidate;
  Rank from = 0;  // whose bytes all ranks get
  // Those of `from`; or of all ranks, one after the other, of which each rank has filled in its
  // own.
  absl::Span<char> bytes;
  // Which exchange of its call this is, counted from 0. So ranks that are at different ones,
  // because some have begun the call again, are not paired.
  uint32_t position = 0;

  // How many each of `world_size` ranks gives where all do.
  int64_t bytes_per_rank(int world_size) const {
    return static_cast<int64_t>(bytes.size()) / world_size;
  }
  // One number for what must be the same on all ranks beside the call: the lowest 17 bits are for
  // the rank, 18 for how many bytes, the other 29 for the position. Of a share that is not checked
  // yet, some number.
  uint64_t subject() const {
    static_assert(kMaxShareBytes < (1 << 18) && kMaxWorldSize < (1 << 17), "they have room");
    return static_cast<uint64_t>(position) << 35 | static_cast<uint64_t>(bytes.size()) << 17 |
           ((static_cast<uint32_t>(from) + 1U) & 0x1ffffU);
  }
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BYTE_SHARE_H_
