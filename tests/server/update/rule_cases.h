// What the tests of update rules share: every registered rule under many hyperparameters, data that
// includes the awkward values, and a comparison of bits that says where they differ.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_RULE_CASES_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_RULE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "server/update/update_rule.h"

namespace optshard::testing {

struct RuleCase {
  const UpdateRule* rule = nullptr;
  Hyperparameters group;           // validated
  std::string name;                // "adam amsgrad=true ..."
  std::vector<bool> signed_slots;  // whether a slot can hold negative values
};

// Every registered rule with every subset of its options that are zero or false by default switched
// on, as far as they go together.
std::vector<RuleCase> AllRuleCases();

// Likewise without the rules that need whole parameters.
std::vector<RuleCase> ElementWiseRuleCases();

// Begins a cache line, as flat parameters do.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename Other>
  explicit CacheLineAllocator(const CacheLineAllocator<Other>&) {}
  T* allocate(size_t count) { return static_cast<T*>(operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* memory, size_t) { operator delete(memory, kAlignment); }
  friend bool operator==(CacheLineAllocator, CacheLineAllocator) { return true; }
  friend bool operator!=(CacheLineAllocator, CacheLineAllocator) { return false; }
};
using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

// A parameter of some shape with gradient and slots, at any misalignment (in elements, from the
// start of a cache line), between guard elements.
class RuleData {
 public:
  // Ordinary values of many magnitudes, and slots as two steps of the rule leave them: values that
  // the rule never gives together could make it compute NaN, which equals any NaN. `specials`:
  // infinities, NaN, both zeros and denormals among them, in slots that have nothing to do with
  // each other; one that is not signed has no negative value. `rule_case` null: no slots.
  RuleData(const RuleCase* rule_case, int64_t elements, int misalignment, bool specials,
           uint32_t seed);

  SpanUpdate Span();
  int64_t elements() const { return elements_; }
  const std::vector<int64_t>& shape() const { return shape_; }

  // "" where parameter, slots and guards have the same bits as `expected`'s (any NaN equals any
  // NaN); otherwise tensor, index, both values in hex and the seed.
  std::string DifferenceTo(const RuleData& expected) const;
  // Whether any value is not a number.
  bool HasNan() const;

 private:
  float* Start(int tensor) { return tensors_[tensor].data() + offset_; }

  int64_t elements_;
  int64_t offset_;
  uint32_t seed_;
  std::vector<AlignedFloats> tensors_;  // gradient, parameter, slots
  std::vector<bool> slots_;             // whether a parameter of this shape has them
  std::vector<int64_t> shape_;
  AlignedFloats workspace_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_RULE_CASES_H_
