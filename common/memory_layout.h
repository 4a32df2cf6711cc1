// Where parameters lie in flat memory: one region per (group, dtype, dtype of gradients, device),
// parameters in order, each 64-byte aligned. It does not depend on who owns what, so a view of it
// stays valid whatever the plan. The same layout serves parameters and gradients: they have the
// same places, counted in elements.
#ifndef OPTSHARD_COMMON_MEMORY_LAYOUT_H_
#define OPTSHARD_COMMON_MEMORY_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/parameter_space.h"

namespace optshard {

constexpr int64_t kAlignmentBytes = 64;

// `elements` rounded up so that the next parameter starts 64-byte aligned.
int64_t AlignedElements(int64_t elements, DType dtype);

// Thread-compatible; immutable after construction.
class MemoryLayout {
 public:
  struct Region {
    int group = 0;
    DType dtype = DType::kFloat32;
    DType gradient_dtype = DType::kFloat32;
    std::string device;
    int64_t elements = 0;  // padding included
    int admission = 0;     // of the parameters
    // Of the parameters, and of their gradients.
    int64_t bytes() const { return elements * static_cast<int64_t>(SizeOf(dtype)); }
    int64_t gradient_bytes() const {
      return elements * static_cast<int64_t>(SizeOf(gradient_dtype));
    }
  };
  struct Place {
    int region = 0;
    int64_t offset_elements = 0;
  };

  MemoryLayout() = default;
  explicit MemoryLayout(const ParameterSpace& space);

  const std::vector<Region>& regions() const { return regions_; }
  const Place& place(int parameter) const { return places_[parameter]; }

  // Of the space.
  int admission_count() const { return admission_count_; }

  // XXH3 over regions and places.
  uint64_t Digest() const { return Digest(admission_count_ - 1); }
  // Over those of this admission and the ones before it: the digest that the layout had before
  // later ones.
  uint64_t Digest(int admission) const;

 private:
  std::vector<Region> regions_;
  std::vector<Place> places_;
  int admission_count_ = 1;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMORY_LAYOUT_H_
