// Reads a rank's share of a checkpoint, in windows, whoever owned what when it was saved.
#ifndef OPTSHARD_CLIENT_OWNER_CHECKPOINT_SHARE_H_
#define OPTSHARD_CLIENT_OWNER_CHECKPOINT_SHARE_H_

#include "absl/status/status.h"
#include "client/owner/checkpoint_match.h"
#include "client/owner/state_layout.h"
#include "common/ids.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/shard/state/state_access.h"

namespace optshard {

// Thread-compatible. What is pointed to outlives it.
class CheckpointShare {
 public:
  CheckpointShare(const CheckpointReader* checkpoint, const CheckpointMatch* match,
                  const StateLayout* layout, Rank rank)
      : checkpoint_(*checkpoint), match_(*match), layout_(*layout), rank_(rank) {}

  // Reads all that the rank owns, parameters and slots, checks it by the checksums, and stages it;
  // staging has begun. Errors as CheckpointReader::Read, and of the state. Takes memory for a
  // window of a MiB, and of four more for a slot in 8 bits.
  absl::Status Stage(StateAccess& state) const;

 private:
  struct Stretch;

  template <typename Use>
  absl::Status ForEachStretch(const Use& use) const;
  // Whether the optimizer keeps the slot in the type in which it was saved.
  bool IsKeptAsSaved(const Stretch& stretch, int parameter, int slot) const;
  absl::Status StageBytes(const Stretch& stretch, int parameter, int slot,
                          StateAccess& state) const;
  absl::Status StageSlot(const Stretch& stretch, int parameter, int slot, StateAccess& state) const;
  absl::Status StageNumbers(StateAccess& state) const;

  const CheckpointReader& checkpoint_;
  const CheckpointMatch& match_;
  const StateLayout& layout_;
  const Rank rank_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CHECKPOINT_SHARE_H_
