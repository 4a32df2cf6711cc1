// Computes on the host what a device's library would.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_CUDA_PRODUCTS_ON_HOST_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_CUDA_PRODUCTS_ON_HOST_H_

#include "absl/status/status.h"
#include "server/update/cuda/device_product.h"

namespace optshard::testing {

// Of matrices in memory of the host, with the bits of NewtonSchulz's products
// (server/update/matrix/newton_schulz.h) as long as the shorter side is less than 512: it has those
// of tall matrices transposed, and cuts those of larger ones. Errors of FindMatrixProduct.
absl::Status RunProductOnHost(const DeviceProduct& product);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_CUDA_PRODUCTS_ON_HOST_H_
