// The safetensors format (https://github.com/huggingface/safetensors), by which tensors lie in a
// file as they lie in memory:
//
//   8 bytes     N, little-endian
//   N bytes     a JSON object, {"NAME": {"dtype": "F32", "shape": [10, 64],
//               "data_offsets": [begin, end]}, ..., "__metadata__": {"KEY": "VALUE", ...}},
//               padded with spaces
//   the rest    the tensors' bytes, little-endian, in C order, one after the other without a gap;
//               offsets count from the beginning of this part
//
// All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_SAFETENSORS_H_
#define OPTSHARD_SERVER_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// As the format's own readers have it.
constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
constexpr int64_t kSafetensorsLengthBytes = 8;  // before the header
constexpr size_t kMaxTensorNameBytes = 4096;

enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

int64_t SizeOf(TensorType type);            // bytes of one element
absl::string_view NameOf(TensorType type);  // the format's: "F32"
absl::optional<TensorType> TensorTypeNamed(absl::string_view name);

struct SafetensorsTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  int64_t offset_bytes = 0;  // from the beginning of the data
  int64_t bytes = 0;
};

// What the header says. Thread-compatible value type.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order in which they lie in the file
  std::map<std::string, std::string> metadata;
  int64_t data_begin_bytes = 0;  // in the file

  int64_t data_bytes() const;
  int64_t file_bytes() const { return data_begin_bytes + data_bytes(); }
};

// Reads all of the header and checks that it describes the file exactly. INVALID_ARGUMENT naming
// the file and the tensor: a header that is too long or no JSON, a name that is twice or has
// control characters, an unknown dtype, a shape that overflows or does not give the tensor's bytes,
// tensors that overlap or leave a gap, a file that is too short or too long. And the file's own
// errors.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(File& file);

// The JSON of a header, of the first bytes of a file, which have all of it: its length, and as many
// bytes. INVALID_ARGUMENT where the length is another one.
absl::StatusOr<absl::string_view> SafetensorsHeaderJson(absl::string_view bytes);

// Likewise of a header alone, without its length; the file has `file_bytes`.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t file_bytes);

struct SafetensorsLayout {
  SafetensorsHeader header;
  std::string bytes;  // of the file up to the data
};

// Lays out tensors, of which name, type and shape are given: those with the largest elements first,
// otherwise in the given order, so that each is aligned to its elements. The data begins at a
// multiple of `alignment_bytes`, so that it can be mapped. INVALID_ARGUMENT for what
// ParseSafetensorsHeader would refuse.
absl::StatusOr<SafetensorsLayout> LayOutSafetensors(std::vector<SafetensorsTensor> tensors,
                                                    std::map<std::string, std::string> metadata,
                                                    int64_t alignment_bytes = 64);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_SAFETENSORS_H_
