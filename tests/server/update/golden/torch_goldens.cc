#include "tests/server/update/golden/torch_goldens.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/fatal.h"

namespace optshard::testing {
namespace {

constexpr char kPath[] = "tests/server/update/golden/torch_goldens.bin";
constexpr size_t kElements = 1000;

// As Numbers in make_goldens.py.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : state_(seed) {}

  std::vector<float> Take(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) {
      state_ = state_ * 1664525 + 1013904223;
      value = static_cast<float>(state_ >> 8) / (1 << 23) - 1;
    }
    return values;
  }

 private:
  uint32_t state_;
};

double NumberOf(const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) Fatal("%s: \"%s\" is no number", kPath, text);
  return value;
}

HyperValue ValueOf(const std::vector<std::string>& words) {
  if (words.size() > 3) {
    std::vector<double> numbers;
    for (size_t k = 2; k < words.size(); ++k) numbers.push_back(NumberOf(words[k]));
    return optshard::Numbers(numbers);
  }
  if (words[2] == "true" || words[2] == "false") return words[2] == "true";
  if (absl::ascii_isalpha(words[2][0])) return words[2];
  return NumberOf(words[2]);
}

template <typename T>
std::vector<T> ReadValues(std::ifstream& file, size_t count) {
  std::vector<T> values(count);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(count * sizeof(T)));
  return values;
}

std::vector<GoldenCase> ReadAll() {
  std::ifstream file(kPath, std::ios::binary);
  std::vector<GoldenCase> cases;
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") continue;
    if (words[0] == "end") return cases;
    if (words[0] == "case" && words.size() == 3) {
      GoldenCase& golden = cases.emplace_back();
      golden.rule = words[1];
      golden.name = words[2];
      golden.shape = {static_cast<int64_t>(kElements)};
    } else if (words[0] == "shape" && !cases.empty()) {
      cases.back().shape.clear();
      for (size_t i = 1; i < words.size(); ++i) {
        cases.back().shape.push_back(static_cast<int64_t>(NumberOf(words[i])));
      }
    } else if (words[0] == "dtype" && !cases.empty() && words.size() == 2) {
      const absl::StatusOr<DType> dtype = ParseDType(words[1]);
      if (!dtype.ok()) break;
      cases.back().dtype = *dtype;
    } else if (words[0] == "option" && !cases.empty() && words.size() >= 3) {
      cases.back().given.Set(words[1], ValueOf(words));
    } else if (words[0] == "tensor" && !cases.empty() && words.size() >= 2) {
      Golden& golden = cases.back().tensors[words[1]];
      const size_t count = words.size() == 2 ? kElements : static_cast<size_t>(NumberOf(words[2]));
      golden.float32 = ReadValues<float>(file, count);
      golden.float64 = ReadValues<double>(file, count);
    } else {
      break;
    }
  }
  Fatal("%s: \"%s\" was not expected; make it anew with make_goldens.py", kPath, line);
}

}  // namespace

std::vector<GoldenCase> ReadTorchGoldens(GoldenTypes types) {
  const bool wants_half = types == GoldenTypes::kHalf;
  std::vector<GoldenCase> cases = ReadAll();
  cases.erase(std::remove_if(cases.begin(), cases.end(),
                             [wants_half](const GoldenCase& golden) {
                               return (SizeOf(golden.dtype) == 2) != wants_half;
                             }),
              cases.end());
  return cases;
}

void PrintTo(const GoldenCase& golden, std::ostream* out) {
  *out << golden.rule << " " << golden.given.ToString();
}

GoldenData MakeGoldenData() {
  Numbers numbers(1);
  GoldenData data;
  data.parameter = numbers.Take(kElements);
  const std::vector<float> mean = numbers.Take(kElements);
  for (int step = 1; step <= kGoldenSteps; ++step) {
    std::vector<float> gradient = numbers.Take(kElements);
    for (size_t i = 0; i < kElements; ++i) gradient[i] += 0.5f * mean[i];
    data.gradients.push_back(std::move(gradient));
  }
  return data;
}

}  // namespace optshard::testing
