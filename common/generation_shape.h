// What all ranks of a generation have alike: they compute it from the same spec and plan.
#ifndef OPTSHARD_COMMON_GENERATION_SHAPE_H_
#define OPTSHARD_COMMON_GENERATION_SHAPE_H_

#include <memory>
#include <vector>

#include "common/bucket.h"
#include "common/ids.h"
#include "common/memory_layout.h"
#include "common/optimizer_spec.h"
#include "common/parameter_space.h"
#include "common/plan.h"

namespace optshard {

// Never changes: another shape is another generation's (docs/decisions/0014). Whoever uses a part
// of it holds the shape, or ends before somebody who does. Thread-safe.
class GenerationShape {
 public:
  // `plan` divides the parameters of `spec` (CheckPartition).
  static std::shared_ptr<const GenerationShape> Make(OptimizerSpec spec, Plan plan);

  GenerationShape(const GenerationShape&) = delete;
  GenerationShape& operator=(const GenerationShape&) = delete;

  const OptimizerSpec& spec() const { return spec_; }
  const ParameterSpace& space() const { return spec_.space; }
  const Plan& plan() const { return plan_; }
  Generation generation() const { return plan_.generation; }
  const MemoryLayout& layout() const { return layout_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }  // all ranks'
  const std::vector<Slice>& slices(Rank rank) const { return plan_.partition.slices[rank]; }

 private:
  GenerationShape(OptimizerSpec spec, Plan plan);

  const OptimizerSpec spec_;
  const Plan plan_;
  const MemoryLayout layout_;
  const std::vector<Bucket> buckets_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_GENERATION_SHAPE_H_
