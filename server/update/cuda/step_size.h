// Step sizes that a GPU computes from norms.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_STEP_SIZE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_STEP_SIZE_H_

#include "server/update/cuda/step_size_body.h"

namespace optshard {

// Enqueues the kernel on a stream, a cudaStream_t. What `arguments` points to lies in the device's
// memory until it has ended. Returns a cudaError_t: 0, or why it could not be launched.
int LaunchStepSizes(const StepSizeArguments& arguments, void* stream);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_STEP_SIZE_H_
