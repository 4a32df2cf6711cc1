// The sum of a reduction on a GPU: ReduceGroups (common/dataplane/tree_average.h), with its bits.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_IN_ORDER_AVERAGE_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_IN_ORDER_AVERAGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/dataplane/nccl/in_order_average_body.h"
#include "common/dtype.h"

namespace optshard {

// Enqueues the kernel on the stream, which belongs to the current device. The memory of `sum` and
// `result` is that device's; `result` may be one of the contributions where the types are the same.
// Thread-safe.
cudaError_t LaunchInOrderAverage(DType dtype, const InOrderSum& sum, int64_t elements, void* result,
                                 cudaStream_t stream);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_IN_ORDER_AVERAGE_H_
