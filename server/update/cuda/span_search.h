// Which span a thread's work is in.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_SPAN_SEARCH_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_SPAN_SEARCH_H_

#include <cstdint>

#include "common/host_device.h"

namespace optshard {
namespace kernels {

// The last span with no more before it than `index`. `before`: how much of what is counted lies in
// the spans before this one. There is a span.
template <class Arguments, class Span>
OPTSHARD_HOST_DEVICE inline const Span& FindSpan(const Arguments& arguments, int64_t Span::*before,
                                                 int64_t index) {
  int32_t low = 0;
  int32_t high = arguments.span_count;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (arguments.spans[middle].*before <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return arguments.spans[low];
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SPAN_SEARCH_H_
