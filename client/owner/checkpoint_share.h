// Reads a rank's share of a checkpoint, in windows, whoever owned what when it was saved.
#ifndef OPTSHARD_CLIENT_OWNER_CHECKPOINT_SHARE_H_
#define OPTSHARD_CLIENT_OWNER_CHECKPOINT_SHARE_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
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

  // Reads all that the rank owns, parameters and slots, and checks it by the checksums. Errors as
  // CheckpointReader::Read. Takes memory for a window of 1,048,576 elements.
  absl::Status Check() const;

  // Replaces the slots that the rank owns. Errors likewise, and of the state. Memory as Check, and
  // as much again for a slot in 8 bits.
  absl::Status WriteSlots(StateAccess& state) const;

  // Gives the tensors, those of the optimizer, the values of the parameters, of all ranks' shares.
  // Takes memory for the largest one that is not contiguous.
  absl::Status ReadParameters(absl::Span<const at::Tensor> to) const;

 private:
  struct Stretch;

  template <typename Use>
  absl::Status ForEachStretch(const Use& use) const;
  absl::Status CheckStretch(const Stretch& stretch) const;
  absl::Status WriteStretch(const Stretch& stretch, int parameter, int slot,
                            StateAccess& state) const;

  const CheckpointReader& checkpoint_;
  const CheckpointMatch& match_;
  const StateLayout& layout_;
  const Rank rank_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CHECKPOINT_SHARE_H_
