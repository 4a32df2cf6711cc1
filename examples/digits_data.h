// The handwritten digits of scikit-learn's digits.csv.gz: 1,797 images of 8 x 8 pixels with 17
// levels of grey. The functions are thread-safe.
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

constexpr int kHeldOut = 360;  // images

// The path at which the build puts the file, or an empty text where it is not there.
std::string DigitsPath();

// NOT_FOUND where there is no such file. DATA_LOSS where it is not a whole gzip file, has too few
// digits, or has a line that is not 64 levels of grey and a digit; names that line.
absl::StatusOr<Digits> ReadDigits(const std::string& path);

// Holds out kHeldOut images, which `seed` chooses. The result is the same on every machine.
DigitsSplit Split(const Digits& digits, uint64_t seed);

// The numbers from 0 to count - 1 in an order that depends on `seed` alone, on every machine.
std::vector<int64_t> Permutation(int64_t count, uint64_t seed);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_DATA_H_
