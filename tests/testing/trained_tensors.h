// What a training left on a rank: parameters and slots, as bytes. Sharded runs are compared with
// the unsharded one by them, also where the ranks were processes.
#ifndef OPTSHARD_TESTS_TESTING_TRAINED_TENSORS_H_
#define OPTSHARD_TESTS_TESTING_TRAINED_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"

namespace optshard::testing {

struct TrainedTensor {
  std::string name;  // "rmsprop centered=true, 3: Half [41, 101] transposed, grad_avg"
  int64_t first =
      0;  // the element of the whole tensor with which `bytes` begin, in row-major order
  DType dtype = DType::kFloat32;
  std::string bytes;

  int64_t elements() const { return static_cast<int64_t>(bytes.size() / SizeOf(dtype)); }
};

// Whether parameters and slots are equal to the bit (any NaN equals any NaN). `unsharded` has whole
// tensors, and each of `ranks` what one rank of the sharded run has. "" where each of their tensors
// is one of the unsharded run's, or a part of it, and none of that run's elements is on no rank;
// otherwise the first difference: tensor, element, both values in hex, and the rank.
std::string Difference(const std::vector<TrainedTensor>& unsharded,
                       const std::vector<std::vector<TrainedTensor>>& ranks);

// To a file, and from it. They end the process where the file cannot be used.
void WriteTensors(const std::string& path, const std::vector<TrainedTensor>& tensors);
std::vector<TrainedTensor> ReadTensors(const std::string& path);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_TRAINED_TENSORS_H_
