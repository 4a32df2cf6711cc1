// What a rank takes of its server's memory beside its segments, which reserve their own.
#ifndef OPTSHARD_SERVER_NODE_RANK_RESERVATION_H_
#define OPTSHARD_SERVER_NODE_RANK_RESERVATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/link/memory_budget.h"

namespace optshard {

// Reserved as long as it lives. Bound to the rank's thread.
class RankReservation {
 public:
  explicit RankReservation(MemoryBudget* budget);  // outlives this
  ~RankReservation();
  RankReservation(const RankReservation&) = delete;
  RankReservation& operator=(const RankReservation&) = delete;

  // For good. Errors as MemoryBudget::Reserve.
  absl::Status Add(int64_t bytes, absl::string_view what);

  // For param groups that are prepared. What was prepared before stays, unless it was dropped.
  // Errors as MemoryBudget::Reserve.
  absl::Status AddPrepared(int64_t bytes, absl::string_view what);
  void DropPrepared();

 private:
  MemoryBudget* const budget_;
  int64_t bytes_ = 0;
  int64_t prepared_bytes_ = 0;  // of them
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_RESERVATION_H_
