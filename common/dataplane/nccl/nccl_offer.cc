#include "common/dataplane/nccl/nccl_offer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/ids.h"

namespace optshard {
namespace {

static_assert(std::is_trivially_copyable_v<NcclOffer>, "it travels as it lies in memory");

template <size_t N>
void Assign(absl::string_view text, char (&to)[N]) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, N - length);
}

// A peer's bytes need not end.
template <size_t N>
absl::string_view TextOf(const char (&text)[N]) {
  return absl::string_view(text, strnlen(text, N));
}

template <typename Value>
absl::Status CheckEqual(absl::Span<const NcclOffer> offers, absl::string_view what,
                        const Value& value) {
  std::vector<Rank> others;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (value(offers[rank]) != value(offers[0])) others.push_back(static_cast<Rank>(rank));
  }
  if (others.empty()) return absl::OkStatus();
  return errors::RanksDisagree(
      others, absl::StrCat("NCCL data plane: ", what, " is ", value(offers[0]), " on rank 0 and ",
                           value(offers[others[0]]), " on rank ", others[0],
                           "; expected the same on all ranks"));
}

}  // namespace

void NcclOffer::SetTrouble(const absl::Status& why) {
  Assign(why.message().empty() ? why.ToString() : why.message(), trouble);
}

void NcclOffer::SetDevice(absl::string_view identity) { Assign(identity, device); }

absl::Status CheckNcclOffers(absl::Span<const NcclOffer> offers) {
  std::vector<std::string> troubles;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const absl::string_view trouble = TextOf(offers[rank].trouble);
    if (!trouble.empty()) troubles.push_back(absl::StrCat("rank ", rank, ": ", trouble));
  }
  if (!troubles.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("not all ranks can use NCCL; ", absl::StrJoin(troubles, "; ")));
  }
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (TextOf(offers[rank].device) != TextOf(offers[other].device)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks ", other, " and ", rank, " are on one GPU (", TextOf(offers[rank].device),
          "); NCCL needs one for each rank: give every rank of a host another device"));
    }
  }
  absl::Status same =
      CheckEqual(offers, "NCCL's version", [](const NcclOffer& offer) { return offer.version; });
  same.Update(CheckEqual(offers, "the option \"deterministic\"",
                         [](const NcclOffer& offer) { return offer.deterministic; }));
  same.Update(CheckEqual(offers, "reduce_window_bytes",
                         [](const NcclOffer& offer) { return offer.reduce_window_bytes; }));
  return same;
}

}  // namespace optshard
