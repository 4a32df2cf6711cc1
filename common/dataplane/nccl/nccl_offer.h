// What each rank tells the others before they connect over NCCL, and whether that goes together.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_OFFER_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_OFFER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace optshard {

// Travels as it lies in memory, between processes of one build. Texts end with a zero.
struct NcclOffer {
  char trouble[512] = {};  // why this rank has no NCCL; empty where it has
  char device[128] = {};   // DeviceApi::Identity
  int32_t version = 0;     // NCCL's
  uint32_t deterministic = 0;
  uint64_t reduce_window_bytes = 0;

  // Texts that are too long are cut.
  void SetTrouble(const absl::Status& why);
  void SetDevice(absl::string_view identity);
};

// Pure. `offers` by rank. Every rank comes to the same conclusion, so that none waits for one that
// gave up.
//   FAILED_PRECONDITION  ranks have no NCCL, or two have one GPU; all of them are named
//   INVALID_ARGUMENT     RanksDisagree: another version of NCCL, or other options, than rank 0
absl::Status CheckNcclOffers(absl::Span<const NcclOffer> offers);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_OFFER_H_
