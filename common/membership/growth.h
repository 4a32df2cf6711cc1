// What a rank proposes to the coordinator when param groups are added, and what it is answered.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_GROWTH_H_
#define OPTSHARD_COMMON_MEMBERSHIP_GROWTH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"

namespace optshard {

// The numbers travel.
enum class GrowthPhase : uint8_t {
  kCompare = 1,  // all ranks propose the same
  kCommit = 2,   // all ranks have built the next generation beside the running one
};

struct GrowthProposal {
  // Of the rank's calls, from 1 on; both phases of a call, and all retries, have the same one.
  uint64_t number = 0;
  GrowthPhase phase = GrowthPhase::kCompare;
  // The spec of the next generation: the present one and one admission more.
  OptimizerSpec spec;
  // Where the coordinator may know the spec: only this digest of it, and in `spec` nothing.
  absl::optional<uint64_t> spec_digest;
  absl::Status prepared;                        // not OK: why this rank cannot go on
  CallNumber calls = 0;                         // LastCall of the rank's progress
  absl::Duration patience = absl::Seconds(60);  // how long it waits for the others
};

// The numbers travel.
enum class GrowthVerdict : uint8_t {
  kAgreed = 1,    // kCommit: the ranks are of the next generation from now on
  kRefused = 2,   // nothing has changed; all ranks that proposed are told the same
  kSendSpec = 3,  // propose again with the spec
  kAskAgain = 4,  // another rank was asked for its spec: propose again in a moment
};

struct GrowthAnswer {
  GrowthVerdict verdict = GrowthVerdict::kRefused;
  Generation generation = 0;  // kAgreed: the next one
  absl::Status failure;       // kRefused: not OK
  // kRefused: ranks wait in step(), or to refuse it, for those that proposed.
  bool others_step = false;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_GROWTH_H_
