#include "examples/digits_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <zlib.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace optshard {
namespace {

constexpr int kPixels = 64;
constexpr float kWhitest = 16;

absl::StatusOr<std::string> Unzip(const std::string& path) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (!file) return absl::NotFoundError(absl::StrCat("the digits are not at \"", path, "\""));
  std::string text;
  char buffer[1 << 16];
  int count = 0;
  while ((count = gzread(file.get(), buffer, sizeof buffer)) > 0) text.append(buffer, count);
  if (count < 0) return absl::DataLossError(absl::StrCat(path, " is not a whole gzip file"));
  return text;
}

bool ParseLine(absl::string_view line, float* pixels, int64_t& label) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != kPixels + 1 || !absl::SimpleAtoi(fields.back(), &label)) return false;
  for (int i = 0; i < kPixels; ++i) {
    if (!absl::SimpleAtof(fields[i], &pixels[i])) return false;
    pixels[i] /= kWhitest;
  }
  return label >= 0 && label <= 9;
}

Digits Select(const Digits& digits, const std::vector<int64_t>& indices) {
  const at::Tensor index = at::tensor(indices);
  return {digits.images.index_select(0, index), digits.labels.index_select(0, index)};
}

}  // namespace

std::string DigitsPath() {
  namespace fs = std::filesystem;
  const fs::path runfiles = fs::read_symlink("/proc/self/exe").string() + ".runfiles";
  const fs::path path = runfiles / "sklearn_digits" / "digits.csv.gz";
  return fs::exists(path) ? path.string() : "";
}

absl::StatusOr<Digits> ReadDigits(const std::string& path) {
  absl::StatusOr<std::string> text = Unzip(path);
  if (!text.ok()) return text.status();
  const std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  const int64_t count = static_cast<int64_t>(lines.size());
  if (count <= kHeldOut) {
    return absl::DataLossError(absl::StrCat(path, " has ", count, " digits; expected 1797"));
  }
  Digits digits;
  digits.images = at::empty({count, 1, 8, 8}, at::TensorOptions().dtype(at::kFloat));
  digits.labels = at::empty({count}, at::TensorOptions().dtype(at::kLong));
  for (int64_t i = 0; i < count; ++i) {
    float* pixels = digits.images.mutable_data_ptr<float>() + i * kPixels;
    if (!ParseLine(lines[i], pixels, digits.labels.mutable_data_ptr<int64_t>()[i])) {
      return absl::DataLossError(
          absl::StrCat(path, ", line ", i + 1, ": expected ", kPixels, " greys and a digit"));
    }
  }
  return digits;
}

std::vector<int64_t> Permutation(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  // Not std::shuffle, whose order each standard library chooses for itself.
  std::mt19937_64 random(seed);
  for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  return order;
}

DigitsSplit Split(const Digits& digits, uint64_t seed) {
  const std::vector<int64_t> order = Permutation(digits.labels.numel(), seed);
  return {Select(digits, {order.begin() + kHeldOut, order.end()}),
          Select(digits, {order.begin(), order.begin() + kHeldOut})};
}

}  // namespace optshard
