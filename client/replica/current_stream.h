// The stream on which the calling thread works on a device.
#ifndef OPTSHARD_CLIENT_REPLICA_CURRENT_STREAM_H_
#define OPTSHARD_CLIENT_REPLICA_CURRENT_STREAM_H_

#include <c10/core/Device.h>

namespace optshard {

// LibTorch's current one, as the device's own interface has it (a cudaStream_t). Null on the CPU.
void* CurrentStream(c10::Device device);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_CURRENT_STREAM_H_
