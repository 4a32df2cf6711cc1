#ifndef OPTSHARD_SERVER_UPDATE_CUDA_ORTHOGONAL_SEQUENCE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_ORTHOGONAL_SEQUENCE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/update/cuda/kernel_rules.h"
#include "server/update/cuda/sequenced_rule.h"

namespace optshard {

// Directions, their norms, what NewtonSchulz (server/update/matrix/newton_schulz.h) makes of them,
// and steps. Matrices of one shape are multiplied at once. Nothing is transposed in memory: of more
// rows than columns the products take xT x, and multiply from the right.
class OrthogonalSequence final : public SequencedRule {
 public:
  explicit OrthogonalSequence(const OrthogonalRule& rule) : rule_(rule) {}

  bool MultipliesMatrices() const override { return true; }

  // Each task's shape has two dimensions.
  absl::StatusOr<LaunchSequence> SequenceOf(absl::Span<const UpdateTask> tasks,
                                            void* workspace) const override;

 private:
  class Builder;

  int64_t BytesOf(const UpdateTask& task) const override;

  const OrthogonalRule rule_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ORTHOGONAL_SEQUENCE_H_
