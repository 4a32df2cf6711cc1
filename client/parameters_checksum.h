// One number over all bytes of some tensors: equal for equal bits.
#ifndef OPTSHARD_CLIENT_PARAMETERS_CHECKSUM_H_
#define OPTSHARD_CLIENT_PARAMETERS_CHECKSUM_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace optshard {

// XXH3 over the values of dense tensors, in order, each in the order of its elements. Waits for a
// device that they lie on.
uint64_t ParametersChecksum(const std::vector<at::Tensor>& tensors);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_PARAMETERS_CHECKSUM_H_
