// The handwritten digits of scikit-learn's digits.csv.gz: 1,797 images of 8 x 8 in 17 greys.
#ifndef OPTSHARD_EXAMPLES_DIGITS_DATA_H_
#define OPTSHARD_EXAMPLES_DIGITS_DATA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace optshard {

struct Digits {
  at::Tensor images;  // float32 [n, 1, 8, 8], 0 to 1
  at::Tensor labels;  // int64 [n]
};

struct DigitsSplit {
  Digits train;
  Digits held_out;
};

constexpr int kHeldOut = 360;

// Where the build puts the file; empty where it is not there.
std::string DigitsPath();

// NOT_FOUND, or DATA_LOSS naming the line that is not 64 greys and a digit.
absl::StatusOr<Digits> ReadDigits(const std::string& path);

// Holds out kHeldOut images, chosen by a permutation from `seed`: the same on every machine.
DigitsSplit Split(const Digits& digits, uint64_t seed);

// 0 .. count-1 in an order made from `seed`, the same on every machine.
std::vector<int64_t> Permutation(int64_t count, uint64_t seed);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_DATA_H_
