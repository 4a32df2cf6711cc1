// The hyperparameters of one param group under the names that PyTorch gives them: lr, betas, eps,
// weight_decay, ...
#ifndef OPTSHARD_COMMON_HYPERPARAMETERS_H_
#define OPTSHARD_COMMON_HYPERPARAMETERS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/variant.h"

namespace optshard {

using Betas = std::array<double, 2>;
using HyperValue = absl::variant<bool, double, Betas>;

std::string ToString(const HyperValue& value);  // "true", "0.001", "[0.9, 0.999]"

// Values by name, in alphabetical order. Thread-compatible value type.
class Hyperparameters {
 public:
  void Set(absl::string_view name, HyperValue value) { values_[std::string(name)] = value; }
  // Null where the name is not set. Valid until the next Set.
  const HyperValue* Find(absl::string_view name) const;

  // The value under a name. Ends the process where it is absent or of another type, which cannot
  // happen once UpdateRule::Validate has returned the set.
  double Number(absl::string_view name) const;
  bool Flag(absl::string_view name) const;
  Betas Pair(absl::string_view name) const;

  const std::map<std::string, HyperValue>& values() const { return values_; }

  // XXH3 of the names, the types and the bits of the values. The ranks compare it before a step is
  // applied.
  uint64_t Digest() const;
  std::string ToString() const;  // "betas=[0.9, 0.999] eps=1e-08 lr=0.001 ..."

  friend bool operator==(const Hyperparameters& a, const Hyperparameters& b) {
    return a.values_ == b.values_;
  }

 private:
  std::map<std::string, HyperValue> values_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_HYPERPARAMETERS_H_
