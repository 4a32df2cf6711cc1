// Text to train a small language model on, as bytes.
#ifndef OPTSHARD_EXAMPLES_LANGUAGE_TEXT_H_
#define OPTSHARD_EXAMPLES_LANGUAGE_TEXT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace optshard {

// Bytes from 0 to 255, int64 [n]; each is a token.
struct LanguageText {
  at::Tensor train;
  at::Tensor held_out;  // every tenth piece of the text
};

// The licences under which Debian's packages come.
constexpr char kLicenceTexts[] = "/usr/share/common-licenses";

// The regular files of the directory, links left out, one after another by name.
//   NOT_FOUND   there is no such directory, or a file cannot be read
//   DATA_LOSS   there is too little text: fewer than 100,000 bytes
absl::StatusOr<LanguageText> ReadLanguageText(const std::string& directory);

// Windows of length + 1 tokens, one a row, that begin at random places of the text; `seed`
// determines which. int64 [rows, length + 1]. The text is longer than a window.
at::Tensor RandomWindows(const at::Tensor& text, int64_t rows, int64_t length, uint64_t seed);

// Those on whose loss runs are compared: the same in every run.
at::Tensor HeldOutWindows(const LanguageText& text, int64_t length);

// The seed of the windows of a step, in the run with this seed: another one for each step of each
// run.
uint64_t SeedOfStep(uint64_t seed, int step);

// The rows of windows that a rank trains on: of their number, which `world_size` divides, an equal
// share.
at::Tensor RowsOfRank(const at::Tensor& windows, int rank, int world_size);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_LANGUAGE_TEXT_H_
