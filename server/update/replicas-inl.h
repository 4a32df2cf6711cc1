// Where the loop over a span (drivers-inl.h) takes its gradient from, and where the parameter goes
// besides its own place. Compiled once for every instruction set.
#if defined(OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_
#undef OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_
#else
#define OPTSHARD_SERVER_UPDATE_REPLICAS_INL_H_
#endif

#include <cstdint>

#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "common/simd/scalar.h"
#include "common/simd/tree_average-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "server/update/element_wise_rule.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

template <class E>
using ArgumentsOf = FormulaArguments<typename E::Number>;

// Averaged elsewhere, or of the only replica: dividing by 1 changes nothing.
template <class E>
class OneGradient {
  using Number = typename E::Number;

 public:
  HWY_INLINE explicit OneGradient(const ArgumentsOf<E>& arguments)
      : gradient_(arguments.gradients.count == 0
                      ? arguments.gradient
                      : static_cast<const Number*>(arguments.gradients.arrays[0]) +
                            arguments.gradients.first) {}
  HWY_INLINE E At(int64_t i) const { return E::Load(gradient_ + i); }
  HWY_INLINE void FetchAhead(int64_t i) const { HWY_NAMESPACE::FetchAhead(gradient_ + i); }

 private:
  const Number* gradient_;
};

// Of the replicas' gradients: an average of tree_average-inl.h.
template <class E, class Average>
struct ReplicaGradients : Average {
  HWY_INLINE explicit ReplicaGradients(const ArgumentsOf<E>& arguments)
      : Average(arguments.gradients) {}
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
      : copies_(arguments.copies),
        count_(arguments.copy_count),
        first_(arguments.gradients.first) {}
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
        first_(arguments.gradients.first) {}

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

// Rounds the parameter to bfloat16 and streams it to the parameter and to its copies. A line is
// streamed while the next one is rounded: a CPU waits where a vector is read right after its halves
// have been written.
template <class E>
class RoundedCopies {
  static constexpr int64_t kLine = kLineBytes / sizeof(uint16_t);

 public:
  HWY_INLINE explicit RoundedCopies(const ArgumentsOf<E>& arguments)
      : rounded_(arguments.rounded),
        copies_(arguments.copies),
        count_(arguments.copy_count),
        first_(arguments.gradients.first) {}

  HWY_INLINE void Write(int64_t i, E parameter) {
    if constexpr (E::kIsVector) {
      StoreHalf<BFloat16>(parameter, lines_ + i % kKept);
      const int64_t end = i + E::Width();
      if (end % kLine == 0 && end > kLine) StreamLine(end - 2 * kLine);
    } else {
      for (int k = kItself; k < count_; ++k) StoreHalf<BFloat16>(parameter, Copy(k) + i);
    }
  }

  HWY_INLINE void Finish(int64_t end) {
    if constexpr (E::kIsVector) {
      const int64_t whole = end / kLine * kLine;
      if (whole > 0) StreamLine(whole - kLine);
      for (int k = kItself; k < count_; ++k) {
        for (int64_t i = whole; i < end; ++i) Copy(k)[i] = lines_[i % kKept];
      }
      hwy::FlushStream();
    }
  }

 private:
  static constexpr int64_t kKept = 2 * kLine;
  static constexpr int kItself = -1;  // before the copies

  HWY_INLINE void StreamLine(int64_t begin) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::ScalableTag<uint16_t> halves;
    for (int k = kItself; k < count_; ++k) {
      uint16_t* const to = Copy(k) + begin;
      for (int64_t i = 0; i < kLine; i += static_cast<int64_t>(hn::Lanes(halves))) {
        hn::Stream(hn::Load(halves, lines_ + begin % kKept + i), halves, to + i);
      }
    }
  }
  HWY_INLINE uint16_t* Copy(int k) const {
    return k == kItself ? rounded_ : static_cast<uint16_t*>(copies_[k]) + first_;
  }

  alignas(kLineBytes) uint16_t lines_[kKept];  // the last elements
  uint16_t* rounded_;
  void* const* copies_;
  int count_;
  int64_t first_;
};

HWY_INLINE bool CanStream(const FormulaArguments<float>& arguments) {
  if (arguments.elements < kElementsWorthStreaming) return false;
  for (int k = 0; k < arguments.copy_count; ++k) {
    const float* const copy = static_cast<float*>(arguments.copies[k]) + arguments.gradients.first;
    if (reinterpret_cast<uintptr_t>(copy) % kLineBytes != 0) return false;
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
