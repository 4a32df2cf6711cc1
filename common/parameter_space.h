// What is optimized: the parameters of an optimizer, by group, in order. Every rank must have the
// same one; a digest tells whether they do, FirstDifference tells where they do not.
#ifndef OPTSHARD_COMMON_PARAMETER_SPACE_H_
#define OPTSHARD_COMMON_PARAMETER_SPACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/dtype.h"

namespace optshard {

constexpr int64_t kMaxSpaceBytes = int64_t{1} << 60;
constexpr int64_t kMaxSpaceUpdateCost = int64_t{1} << 62;

// The product of a shape's extents, 1 of {}; INT64_MAX where it is larger than that, 0 with a
// negative extent.
int64_t ElementsOf(absl::Span<const int64_t> shape);

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;  // {} is a scalar: one element
  DType dtype = DType::kFloat32;
  std::string device = "cpu";  // or "cuda": of which kind, since each rank has one of its own
  // What an update costs beside that of the group's other parameters, where that is not as its
  // number of elements (UpdateRule::UpdateCost). 0 otherwise.
  int64_t update_cost = 0;
  // Of a bfloat16 or float16 parameter: its gradient is float32.
  bool main_gradient = false;

  DType gradient_dtype() const { return main_gradient ? DType::kFloat32 : dtype; }
  int64_t elements() const;  // ElementsOf(shape)
};

// Rule and hyperparameters of the group are not part of the space (OptimizerSpec::rules).
struct GroupSpec {
  // Parameters that were added to the group later: from number `first` of the group on they came by
  // this admission, up to those of the next addition.
  struct Addition {
    int first = 0;
    int admission = 0;
  };

  std::vector<ParameterSpec> parameters;  // in the user's order: what is added stands at the end
  // By which admission the group came: 0 at construction, and one more each time that groups or
  // parameters were added. Layout, partition and buckets of one admission do not depend on later
  // ones.
  int admission = 0;
  std::vector<Addition> additions = {};
};

// Parameters have indices 0..n-1 in the order in which they came: by admission, and in one over the
// groups in order. What is added later changes no index. Users count them otherwise, over the
// groups in order, as a PyTorch state dict does: that is a parameter's position. The two differ
// where a group but the last has additions. Thread-compatible; immutable after construction.
class ParameterSpace {
 public:
  ParameterSpace() = default;
  explicit ParameterSpace(std::vector<GroupSpec> groups);

  int parameter_count() const { return static_cast<int>(index_.size()); }
  int group_count() const { return static_cast<int>(groups_.size()); }
  const ParameterSpec& parameter(int index) const;
  int group_of(int index) const;
  int admission_of(int index) const { return index_[index].admission; }
  // Over the groups in order, and back.
  int position_of(int index) const { return index_[index].position; }
  int index_at(int position) const { return index_at_[position]; }
  // At least 1. Those of a valid space are numbered 0..n-1.
  int admission_count() const { return last_admission_ + 1; }
  const std::vector<GroupSpec>& groups() const { return groups_; }
  int64_t total_elements() const;  // INT64_MAX where it is larger than that

  // INVALID_ARGUMENT naming the parameter: an empty or repeated name, a negative extent, an unknown
  // dtype, a main gradient of a parameter that is not 16-bit, no device, a negative cost, more than
  // kMaxSpaceBytes or kMaxSpaceUpdateCost up to and with it, or what common/request_limits.h does
  // not allow; or naming the group whose admission, or whose addition, does not follow the one
  // before it. Sums of sizes or of costs of a valid space never overflow.
  absl::Status Validate() const;

  // XXH3 of names, shapes, dtypes, also of gradients, devices, costs, groups, admissions and
  // additions: equal for equal spaces on every machine.
  uint64_t Digest() const;

 private:
  bool has_update_costs() const;
  bool has_admissions() const;
  bool has_additions() const;
  absl::Status CheckAdmissions() const;

  struct Place {
    int group;
    int within;
    int admission;
    int position;
  };
  std::vector<GroupSpec> groups_;
  std::vector<Place> index_;
  std::vector<int> index_at_;  // by position
  int last_admission_ = 0;
};

// The first place where two spaces differ, with both sides shown, such as
//   parameter 3 (group 0): rank 0 has "fc.weight" float32 [10, 64], rank 1 has "fc.weight" float32
//   [10, 65]
// nullopt where they are equal.
absl::optional<std::string> FirstDifference(const ParameterSpace& a, absl::string_view a_name,
                                            const ParameterSpace& b, absl::string_view b_name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PARAMETER_SPACE_H_
