#include "common/generation_shape.h"

#include <utility>

namespace optshard {

GenerationShape::GenerationShape(OptimizerSpec spec, Plan plan)
    : spec_(std::move(spec)),
      plan_(std::move(plan)),
      layout_(spec_.space),
      buckets_(MakeBuckets(layout_, plan_, spec_.buckets)) {}

std::shared_ptr<const GenerationShape> GenerationShape::Make(OptimizerSpec spec, Plan plan) {
  return std::shared_ptr<const GenerationShape>(
      new GenerationShape(std::move(spec), std::move(plan)));
}

}  // namespace optshard
