// Where the loop over a span (drivers-inl.h) takes its gradient from, and where the parameter goes
// besides its own place. Compiled once for every instruction set.
#if defined(OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_
#undef OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_
#else
#define OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "server/update/element_wise_rule.h"
#include "server/update/lanes-inl.h"
#include "server/update/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// Hardware fetches ahead, but not beyond the end of a 4 KiB page. Asking once a cache line for what
// comes 2 KiB later takes 7 to 15 % from Adam, on 4 KiB and on huge pages, with 1 to 8 replicas;
// 1 or 3 KiB do as well. Not for copies: what they hold is not read.
constexpr uintptr_t kBytesAhead = 2048;
constexpr uintptr_t kLineBytes = 64;
template <class E>
constexpr int64_t kLineElements = kLineBytes / sizeof(typename E::Number);

template <class E>
using ArgumentsOf = FormulaArguments<typename E::Number>;

// Whether element i of an aligned span begins a cache line, for vectors. One element at a time
// waits for arithmetic, not for memory.
template <class E>
HWY_INLINE bool BeginsLine(int64_t i) {
  return E::kIsVector && (E::Width() >= kLineElements<E> || i % kLineElements<E> == 0);
}

// May reach behind the array: it is only a hint, nothing is read there.
HWY_INLINE void FetchAhead(const void* at) {
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at) + kBytesAhead));
}

enum class Gradients { kOne, kTwo, kTree };

// The common cases apart: one or two replicas, all with gradients.
HWY_INLINE Gradients GradientsOf(const FormulaArguments<float>& arguments) {
  if (arguments.replicas == 0) return Gradients::kOne;
  if (arguments.replicas > 2) return Gradients::kTree;
  for (int k = 0; k < arguments.replicas; ++k) {
    if (arguments.gradients[k] == nullptr) return Gradients::kTree;
  }
  return arguments.replicas == 1 ? Gradients::kOne : Gradients::kTwo;
}

// Averaged elsewhere, or of the only replica: dividing by 1 changes nothing.
template <class E>
class OneGradient {
  using Number = typename E::Number;

 public:
  HWY_INLINE explicit OneGradient(const ArgumentsOf<E>& arguments)
      : gradient_(arguments.replicas == 0
                      ? arguments.gradient
                      : static_cast<const Number*>(arguments.gradients[0]) + arguments.first) {}
  HWY_INLINE E At(int64_t i) const { return E::Load(gradient_ + i); }
  HWY_INLINE void FetchAhead(int64_t i) const { HWY_NAMESPACE::FetchAhead(gradient_ + i); }

 private:
  const Number* gradient_;
};

// Any tree over two ranks is their sum.
template <class E>
class AverageOfTwo {
  using Number = typename E::Number;

 public:
  HWY_INLINE explicit AverageOfTwo(const ArgumentsOf<E>& arguments)
      : first_(static_cast<const Number*>(arguments.gradients[0]) + arguments.first),
        second_(static_cast<const Number*>(arguments.gradients[1]) + arguments.first) {}
  HWY_INLINE void FetchAhead(int64_t i) const {
    HWY_NAMESPACE::FetchAhead(first_ + i);
    HWY_NAMESPACE::FetchAhead(second_ + i);
  }
  // Halving gives the bits of dividing by 2: both round the same number.
  HWY_INLINE E At(int64_t i) const {
    return (E::Load(first_ + i) + E::Load(second_ + i)) * E(0.5f);
  }

 private:
  const Number* first_;
  const Number* second_;
};

// The order and the division of TreeAverage (common/dataplane/tree_average.h), which goes over
// whole blocks instead; one_pass_test.cc holds the two together.
template <class E>
class AverageOfTree {
  using Number = typename E::Number;

 public:
  HWY_INLINE explicit AverageOfTree(const ArgumentsOf<E>& arguments)
      : gradients_(arguments.gradients),
        first_(arguments.first),
        group_sizes_(arguments.group_sizes),
        groups_(arguments.groups),
        count_(arguments.replicas),
        divisor_(static_cast<Number>(arguments.replicas)) {}

  HWY_INLINE E At(int64_t i) const {
    const void* const* next = gradients_;
    E total = SumOfGroup(next, group_sizes_[0], first_ + i);
    for (int group = 1; group < groups_; ++group) {
      next += group_sizes_[group - 1];
      total = total + SumOfGroup(next, group_sizes_[group], first_ + i);
    }
    return total / divisor_;
  }
  HWY_INLINE void FetchAhead(int64_t i) const {
    for (int k = 0; k < count_; ++k) {
      if (gradients_[k] != nullptr) {
        HWY_NAMESPACE::FetchAhead(static_cast<const Number*>(gradients_[k]) + first_ + i);
      }
    }
  }

 private:
  // A rank without a gradient adds +0, as where it sends zeros: -0 + 0 is +0.
  static HWY_INLINE E Value(const void* gradient, int64_t at) {
    return gradient == nullptr ? E(0.0f) : E::Load(static_cast<const Number*>(gradient) + at);
  }
  static HWY_INLINE E SumOfGroup(const void* const* gradients, int size, int64_t at) {
    E sum = Value(gradients[0], at);
    for (int k = 1; k < size; ++k) sum = sum + Value(gradients[k], at);
    return sum;
  }

  const void* const* gradients_;
  int64_t first_;
  const int* group_sizes_;
  int groups_;
  int count_;
  E divisor_;
};

template <class E>
class NoCopies {
 public:
  HWY_INLINE explicit NoCopies(const ArgumentsOf<E>&) {}
  HWY_INLINE void Write(int64_t, E) const {}
  HWY_INLINE void Finish(int64_t) const {}
};

template <class E>
class StoredCopies {
  using Number = typename E::Number;

 public:
  HWY_INLINE explicit StoredCopies(const ArgumentsOf<E>& arguments)
      : copies_(arguments.copies), count_(arguments.copy_count), first_(arguments.first) {}
  HWY_INLINE void Write(int64_t i, E parameter) const {
    for (int k = 0; k < count_; ++k) {
      parameter.Store(static_cast<Number*>(copies_[k]) + first_ + i);
    }
  }
  HWY_INLINE void Finish(int64_t) const {}

 private:
  void* const* copies_;
  int count_;
  int64_t first_;
};

// Whole lines, one copy after the other: a line that is streamed piece by piece holds a fill buffer
// until it is complete, and a CPU has few of those.
template <class E>
class StreamedCopies {
  using Number = typename E::Number;
  static constexpr int64_t kLine = kLineElements<E>;

 public:
  HWY_INLINE explicit StreamedCopies(const ArgumentsOf<E>& arguments)
      : parameter_(arguments.parameter),
        copies_(arguments.copies),
        count_(arguments.copy_count),
        first_(arguments.first) {}

  HWY_INLINE void Write(int64_t i, E parameter) const {
    const int64_t end = i + E::Width();
    if (E::Width() >= kLine) {
      for (int k = 0; k < count_; ++k) parameter.Stream(Copy(k) + i);
    } else if (end % kLine == 0) {
      StreamFrom(end - kLine, end);
    }
  }

  // Streaming stores are not ordered with the one by which the caller tells that it is done.
  HWY_INLINE void Finish(int64_t end) const {
    StreamFrom(end / kLine * kLine, end);
    hwy::FlushStream();
  }

 private:
  // What the loop has just stored.
  HWY_INLINE void StreamFrom(int64_t begin, int64_t end) const {
    for (int k = 0; k < count_; ++k) {
      for (int64_t i = begin; i < end; i += E::Width()) {
        E::Load(parameter_ + i).Stream(Copy(k) + i);
      }
    }
  }
  HWY_INLINE Number* Copy(int k) const { return static_cast<Number*>(copies_[k]) + first_; }

  const Number* parameter_;
  void* const* copies_;
  int count_;
  int64_t first_;
};

HWY_INLINE bool CanStream(const FormulaArguments<float>& arguments) {
  if (arguments.elements < kElementsWorthStreaming) return false;
  for (int k = 0; k < arguments.copy_count; ++k) {
    const float* const copy = static_cast<float*>(arguments.copies[k]) + arguments.first;
    if (reinterpret_cast<uintptr_t>(copy) % kLineBytes != 0) return false;
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
