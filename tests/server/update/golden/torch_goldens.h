// torch_goldens.bin as values, and the data from which it was made.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_GOLDEN_TORCH_GOLDENS_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_GOLDEN_TORCH_GOLDENS_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/hyperparameters.h"

namespace optshard::testing {

// A tensor after the last step.
struct Golden {
  // Of a case in a 16-bit type: "parameter" is PyTorch's in that type, and "master" is PyTorch's in
  // float32 from the same data.
  std::vector<float> float32;
  std::vector<double> float64;  // of a matrix: without any rounding to bfloat16
};

struct GoldenCase {
  std::string rule;
  std::string name;
  Hyperparameters given;
  DType dtype = DType::kFloat32;          // to which parameter and gradients are rounded first
  std::vector<int64_t> shape;             // of the parameter
  std::map<std::string, Golden> tensors;  // "parameter" and the slots
};

// For GoogleTest.
void PrintTo(const GoldenCase& golden, std::ostream* out);

constexpr int kGoldenSteps = 100;

enum class GoldenTypes : uint8_t { kFloat32, kHalf };

// The cases in such types. Ends the process with a message where the file is not as make_goldens.py
// writes it.
std::vector<GoldenCase> ReadTorchGoldens(GoldenTypes types = GoldenTypes::kFloat32);

struct GoldenData {
  std::vector<float> parameter;  // before the first step
  std::vector<std::vector<float>> gradients;
};
// Of 1,000 elements. A case whose parameter has fewer takes the first.
GoldenData MakeGoldenData();

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_GOLDEN_TORCH_GOLDENS_H_
