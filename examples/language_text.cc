#include "examples/language_text.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr size_t kLeastText = 100'000;
constexpr size_t kPiece = 2048;
constexpr size_t kHeldOutPiece = 10;  // one of so many
constexpr int64_t kHeldOutWindows = 64;
constexpr uint64_t kHeldOutSeed = 1;

absl::StatusOr<std::vector<std::filesystem::path>> FilesOf(const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator entry(directory, error), end; entry != end && !error;
       entry.increment(error)) {
    if (!entry->is_symlink() && entry->is_regular_file()) paths.push_back(entry->path());
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory, ": ", error.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

at::Tensor TokensOf(const std::string& bytes) {
  at::Tensor tokens = at::empty({static_cast<int64_t>(bytes.size())}, at::kLong);
  std::transform(bytes.begin(), bytes.end(), tokens.data_ptr<int64_t>(),
                 [](char byte) { return static_cast<uint8_t>(byte); });
  return tokens;
}

}  // namespace

absl::StatusOr<LanguageText> ReadLanguageText(const std::string& directory) {
  absl::StatusOr<std::vector<std::filesystem::path>> paths = FilesOf(directory);
  if (!paths.ok()) return paths.status();
  std::string text;
  for (const std::filesystem::path& path : *paths) {
    std::ifstream file(path, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file) return absl::NotFoundError(absl::StrCat(path.string(), " cannot be read"));
  }
  if (text.size() < kLeastText) {
    return absl::DataLossError(absl::StrCat(directory, " has ", text.size(), " bytes of text in ",
                                            paths->size(), " files; expected at least ",
                                            kLeastText));
  }
  std::string train;
  std::string held_out;
  for (size_t piece = 0; piece * kPiece < text.size(); ++piece) {
    std::string& part = piece % kHeldOutPiece == kHeldOutPiece - 1 ? held_out : train;
    part.append(text, piece * kPiece, kPiece);
  }
  return LanguageText{TokensOf(train), TokensOf(held_out)};
}

at::Tensor RandomWindows(const at::Tensor& text, int64_t rows, int64_t length, uint64_t seed) {
  // Not std::uniform_int_distribution, whose numbers each standard library chooses for itself.
  std::mt19937_64 random(seed);
  at::Tensor windows = at::empty({rows, length + 1}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = static_cast<int64_t>(random() % (text.numel() - length));
    windows[row].copy_(text.narrow(/*dim=*/0, begin, length + 1));
  }
  return windows;
}

at::Tensor HeldOutWindows(const LanguageText& text, int64_t length) {
  return RandomWindows(text.held_out, kHeldOutWindows, length, kHeldOutSeed);
}

uint64_t SeedOfStep(uint64_t seed, int step) { return (seed << 32) + static_cast<uint64_t>(step); }

at::Tensor RowsOfRank(const at::Tensor& windows, int rank, int world_size) {
  const int64_t share = windows.size(0) / world_size;
  return windows.narrow(/*dim=*/0, rank * share, share);
}

}  // namespace optshard
