#include "server/update/span_tiles.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "common/block_code.h"
#include "common/dataplane/tree_average.h"
#include "common/dtype_conversion.h"
#include "common/parameter_correction.h"
#include "common/streaming_copy.h"

namespace optshard {
namespace {

// Whether the copies hold what the formula's loop stores, so that the loop can write them.
template <typename T>
bool CopiesAreStored(const SpanUpdate& span) {
  return std::is_same_v<T, float> && span.parameter.dtype() == DType::kFloat32 && !span.master &&
         !span.keeps_parameter;
}

int64_t CountCoded(const SpanUpdate& span) {
  return std::count_if(std::begin(span.slots), std::end(span.slots),
                       [](const SlotArray& slot) { return slot.is_coded(); });
}

}  // namespace

bool CanStream(const SpanUpdate& span) {
  if (span.elements < kElementsWorthStreaming || span.keeps_parameter) return false;
  if (span.master && !IsStreamable(span.parameter.data())) return false;
  for (void* const copy : span.replicas.copies) {
    if (!IsStreamable(Buffer(copy, span.parameter.dtype()).From(span.replicas.first).data())) {
      return false;
    }
  }
  return span.master || !span.replicas.copies.empty();
}

template <typename T>
SpanTiles<T>::SpanTiles(const SpanUpdate& span)
    : span_(span),
      coded_(CountCoded(span)),
      loop_copies_(coded_ > 0 && CopiesAreStored<T>(span)),
      streams_(!loop_copies_ && CanStream(span)),
      elements_(coded_ > 0 ? kCodedElements : kPlainElements) {}

template <typename T>
SpanTiles<T>::~SpanTiles() {
  if (streams_) FenceStreams();
}

template <typename T>
bool SpanTiles<T>::Next() {
  if (begin_ >= span_.elements) return false;
  tile_.elements = std::min(elements_, span_.elements - begin_);
  if (coded_ > 0) PlanNext();
  tile_.replicas.first = span_.replicas.first + begin_;
  if (loop_copies_) tile_.replicas.copies = span_.replicas.copies;
  LoadGradient();
  LoadParameter();
  for (int k = 0; k < kMaxSlots; ++k) tile_.slots[k] = LoadSlot(span_.slots[k], slots_[k]);
  return true;
}

template <typename T>
void SpanTiles<T>::Finish() {
  for (int k = 0; k < kMaxSlots; ++k) StoreSlot(tile_.slots[k], span_.slots[k]);
  if (!span_.keeps_parameter) PublishParameter();
  begin_ += tile_.elements;
}

template <typename T>
void SpanTiles<T>::PlanNext() {
  next_ = LinesAhead();
  const int64_t begin = begin_ + tile_.elements;
  const int64_t elements = std::min(elements_, span_.elements - begin);
  const auto add = [&](ConstBuffer array, int64_t first) {
    if (array) next_.Add(array.From(first).data(), elements * SizeOf(array.dtype()));
  };
  const DType gradient_dtype = span_.gradient.dtype();
  for (const void* const gradient : span_.replicas.gradients) {
    add(ConstBuffer(gradient, gradient_dtype), span_.replicas.first + begin);
  }
  add(span_.gradient, begin);
  add(span_.master ? span_.master : span_.parameter, begin);
  // Each coded slot is decoded and encoded.
  next_.SpreadOver(2 * coded_ * (tile_.elements / kElementsAFetch));
}

template <typename T>
void SpanTiles<T>::LoadParameter() {
  if constexpr (std::is_same_v<T, float>) {
    if (span_.correction != nullptr) {
      Corrected(span_.parameter.dtype(), span_.parameter.From(begin_).data(),
                span_.correction + begin_, tile_.elements, parameter_);
      tile_.parameter = parameter_;
      return;
    }
  }
  tile_.parameter = span_.master ? span_.master.From(begin_) : Load(span_.parameter, parameter_);
}

template <typename T>
void SpanTiles<T>::PublishParameter() {
  const DType dtype = span_.parameter.dtype();
  const size_t bytes = tile_.elements * SizeOf(dtype);
  ConstBuffer from = span_.parameter.From(begin_);
  if (span_.rounded_to != DType::kFloat32 || (streams_ && span_.master)) {
    // By way of the cache: what is streamed is not read from memory first.
    from = RoundedMaster();
    if (streams_) {
      Stream(span_.parameter.From(begin_).data(), from.data(), bytes);
    } else {
      std::memcpy(span_.parameter.From(begin_).data(), from.data(), bytes);
    }
  } else {
    Store(tile_.parameter, span_.parameter);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (span_.correction != nullptr) {
      CorrectionsOf(dtype, parameter_, from.data(), tile_.elements, span_.correction + begin_);
    }
  }
  if (loop_copies_) return;
  for (void* const replica : span_.replicas.copies) {
    const Buffer copy = Buffer(replica, dtype).From(span_.replicas.first + begin_);
    if (streams_) {
      Stream(copy.data(), from.data(), bytes);
    } else {
      std::memcpy(copy.data(), from.data(), bytes);
    }
  }
}

template <typename T>
ConstBuffer SpanTiles<T>::RoundedMaster() {
  if constexpr (std::is_same_v<T, float>) {
    const auto* const master = tile_.parameter.template As<float>();
    if (span_.rounded_to == DType::kFloat32) {
      Narrow(span_.parameter.dtype(), master, tile_.elements, parameter_);
    } else {
      // The formula has read the gradient.
      Narrow(span_.rounded_to, master, tile_.elements, gradient_);
      Widen(span_.rounded_to, gradient_, tile_.elements, parameter_);
    }
  }
  return ConstBuffer(parameter_, span_.parameter.dtype());
}

template <typename T>
Buffer SpanTiles<T>::Load(Buffer array, T* memory) const {
  const Buffer from = array.From(begin_);
  if (!array || array.dtype() == kDTypeOf<T>) return from;
  if constexpr (std::is_same_v<T, float>) {
    Widen(from.dtype(), from.data(), tile_.elements, memory);
  }
  return memory;
}

template <typename T>
SlotArray SpanTiles<T>::LoadSlot(const SlotArray& slot, T* memory) {
  if constexpr (std::is_same_v<T, float>) {
    if (slot.is_coded()) {
      Decode(slot.coded().From(begin_), tile_.elements, memory, &next_);
      return memory;
    }
  }
  return Load(slot.plain(), memory);
}

template <typename T>
void SpanTiles<T>::LoadGradient() {
  const ReplicaSpans& replicas = span_.replicas;
  if (!replicas.gradients.empty()) {
    if (std::is_same_v<T, float> && span_.gradient.dtype() == DType::kFloat32) {
      // The formula's loop averages them: a loop that only reads them would wait for the memory,
      // and the formula then for nothing.
      tile_.gradient = ConstBuffer(nullptr, DType::kFloat32);
      tile_.replicas.gradients = replicas.gradients;
      tile_.replicas.group_sizes = replicas.group_sizes;
      return;
    }
    AverageOfGroups(replicas.group_sizes, span_.gradient.dtype(), replicas.gradients,
                    replicas.first + begin_, tile_.elements, gradient_);
    tile_.gradient = gradient_;
    return;
  }
  const ConstBuffer from = span_.gradient.From(begin_);
  tile_.gradient = from;
  if constexpr (std::is_same_v<T, float>) {
    if (from.dtype() == DType::kFloat32) return;
    Widen(from.dtype(), from.data(), tile_.elements, gradient_);
    tile_.gradient = gradient_;
  }
}

template <typename T>
void SpanTiles<T>::Store(Buffer loaded, Buffer array) const {
  if (!array || array.dtype() == kDTypeOf<T>) return;
  if constexpr (std::is_same_v<T, float>) {
    Narrow(array.dtype(), loaded.As<float>(), tile_.elements, array.From(begin_).data());
  }
}

template <typename T>
void SpanTiles<T>::StoreSlot(const SlotArray& loaded, const SlotArray& slot) {
  if constexpr (std::is_same_v<T, float>) {
    if (slot.is_coded()) {
      Encode(loaded.As<float>(), tile_.elements, slot.coded().From(begin_), &next_);
      return;
    }
  }
  Store(loaded.plain(), slot.plain());
}

template class SpanTiles<float>;
template class SpanTiles<double>;

}  // namespace optshard
