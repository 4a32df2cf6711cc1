#include "server/node/rank_reservation.h"

#include <utility>

namespace optshard {

RankReservation::RankReservation(MemoryBudget* budget) : budget_(budget) {}

RankReservation::~RankReservation() { budget_->Release(bytes_); }

absl::Status RankReservation::Add(int64_t bytes, absl::string_view what) {
  absl::Status fits = budget_->Reserve(bytes, what);
  if (fits.ok()) bytes_ += bytes;
  return fits;
}

absl::Status RankReservation::AddPrepared(int64_t bytes, absl::string_view what) {
  absl::Status fits = Add(bytes, what);
  prepared_bytes_ = fits.ok() ? bytes : 0;
  return fits;
}

void RankReservation::DropPrepared() {
  const int64_t prepared = std::exchange(prepared_bytes_, 0);
  budget_->Release(prepared);
  bytes_ -= prepared;
}

}  // namespace optshard
