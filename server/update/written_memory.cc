#include "server/update/written_memory.h"

#include "common/block_code.h"
#include "common/dtype.h"

namespace optshard {

void ForEachWritten(const SpanUpdate& span,
                    absl::FunctionRef<void(const void* data, int64_t bytes)> take) {
  const auto take_plain = [&](const Buffer& array) {
    if (array) take(array.data(), span.elements * static_cast<int64_t>(SizeOf(array.dtype())));
  };
  for (const SlotArray& slot : span.slots) {
    if (slot.is_coded()) {
      const CodedArray& coded = slot.coded();
      take(coded.codes, CodeBytes(coded.code, span.elements));
      take(coded.scales, ScaleBytes(coded.code, span.elements));
    } else {
      take_plain(slot.plain());
    }
  }
  take_plain(span.master);
  take_plain(span.parameter);
  if (span.correction != nullptr) take(span.correction, span.elements);
}

}  // namespace optshard
