// LAMB on a device: a direction for each parameter, the squares of both, and a step along it.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_SEQUENCE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_SEQUENCE_H_

#include "server/update/cuda/kernel_rules.h"
#include "server/update/cuda/sequenced_rule.h"

namespace optshard {

class NormScaledSequence final : public SequencedRule {
 public:
  explicit NormScaledSequence(const NormScaledRule& rule) : rule_(rule) {}

  absl::StatusOr<LaunchSequence> SequenceOf(absl::Span<const UpdateTask> tasks,
                                            void* workspace) const override;

 private:
  int64_t BytesOf(const UpdateTask& task) const override;

  const NormScaledRule rule_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_SEQUENCE_H_
