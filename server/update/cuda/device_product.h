// Products of matrices on a device: plain data.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_DEVICE_PRODUCT_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_DEVICE_PRODUCT_H_

#include <cstdint>

namespace optshard {

// Matrices of bfloat16 of one shape, each so many elements behind the one before.
struct DeviceMatrices {
  void* data = nullptr;  // 64-byte aligned
  int64_t stride = 0;    // a multiple of 32
};

// The shape of products d = scale * a b + keep * c. Matrices lie row by row, without gaps. Sums are
// float32, and are rounded once.
struct ProductShape {
  int64_t rows = 0;     // of c and d
  int64_t columns = 0;  // of c and d
  int64_t inner = 0;    // columns of a, rows of b
  // The matrix that lies in memory is the transposed one: inner x rows, or columns x inner.
  bool a_transposed = false;
  bool b_transposed = false;
  int64_t count = 1;  // of products, each with matrices of its own
};

struct DeviceProduct {
  ProductShape shape;
  DeviceMatrices a;
  DeviceMatrices b;
  DeviceMatrices c;  // not read where `keep` is 0
  DeviceMatrices d;  // overlaps none of the others
  float scale = 1;
  float keep = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_DEVICE_PRODUCT_H_
