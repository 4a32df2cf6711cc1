// The hyperparameters of one param group under the names that PyTorch gives them: lr, betas, eps,
// weight_decay, ...
#ifndef OPTSHARD_COMMON_HYPERPARAMETERS_H_
#define OPTSHARD_COMMON_HYPERPARAMETERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "absl/types/variant.h"

namespace optshard {

constexpr size_t kMaxNumbers = 4;

// Several numbers that are one value: betas. How many is the option's to say. Thread-compatible
// value type.
class Numbers {
 public:
  Numbers() = default;
  // At most kMaxNumbers; more end the process.
  Numbers(std::initializer_list<double> values)
      : Numbers(absl::Span<const double>(values.begin(), values.size())) {}
  explicit Numbers(absl::Span<const double> values);

  size_t size() const { return size_; }
  double operator[](size_t index) const { return values_[index]; }
  const double* begin() const { return values_.data(); }
  const double* end() const { return values_.data() + size_; }

  friend bool operator==(const Numbers& a, const Numbers& b) {
    return a.size_ == b.size_ && a.values_ == b.values_;
  }
  friend bool operator!=(const Numbers& a, const Numbers& b) { return !(a == b); }

 private:
  std::array<double, kMaxNumbers> values_{};
  size_t size_ = 0;
};

// A flag, a number, several numbers, or one of the names that an option offers.
using HyperValue = absl::variant<bool, double, Numbers, std::string>;

std::string ToString(const HyperValue& value);  // true, 0.001, [0.9, 0.999], "original"

// Values by name, in alphabetical order. Thread-compatible value type.
class Hyperparameters {
 public:
  void Set(absl::string_view name, HyperValue value);
  void Set(absl::string_view name, const char* value) = delete;  // else it would be a flag
  // Null where the name is not set. Valid until the next Set.
  const HyperValue* Find(absl::string_view name) const;

  // The value under a name. Ends the process where it is absent or of another type, which cannot
  // happen once UpdateRule::Validate has returned the set.
  double Number(absl::string_view name) const;
  bool Flag(absl::string_view name) const;
  Numbers List(absl::string_view name) const;
  const std::string& Choice(absl::string_view name) const;

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
