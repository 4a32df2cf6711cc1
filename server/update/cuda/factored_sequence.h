// Adafactor on a device, of vectors and matrices.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_FACTORED_SEQUENCE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_FACTORED_SEQUENCE_H_

#include "server/update/cuda/kernel_rules.h"
#include "server/update/cuda/sequenced_rule.h"

namespace optshard {

// The update of a vector is one formula. That of a matrix begins as its gradient; the squares of
// that are averaged over rows and columns, and divide it. Then steps are scaled by the squares of
// parameter and update. In the order of server/update/rules/adafactor.cc, with its bits.
class FactoredSequence final : public SequencedRule {
 public:
  explicit FactoredSequence(const FactoredRule& rule) : rule_(rule) {}

  absl::StatusOr<LaunchSequence> SequenceOf(absl::Span<const UpdateTask> tasks,
                                            void* workspace) const override;

 private:
  class Builder;

  int64_t BytesOf(const UpdateTask& task) const override;

  const FactoredRule rule_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_FACTORED_SEQUENCE_H_
