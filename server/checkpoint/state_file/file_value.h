// Values as files of PyTorch have them: dicts, lists, numbers, texts and tensors. Values of other
// kinds do not exist here, so reading a file runs nothing of what is in it.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_FILE_VALUE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_FILE_VALUE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {

enum class FileKind : uint8_t {
  kNone,
  kFlag,
  kInt,
  kNumber,
  kText,
  kList,
  kTuple,
  kDict,
  kTensor,
};

absl::string_view NameOf(FileKind kind);  // "a list", for messages

// Thread-compatible value type.
struct FileValue {
  FileKind kind = FileKind::kNone;
  int64_t whole = 0;  // of an int; 0 or 1 of a flag; of a tensor its place in FileDocument::tensors
  double number = 0;
  std::string text;
  std::vector<FileValue> elements;  // of a list or tuple; of a dict keys and values in turn

  static FileValue Flag(bool flag);
  static FileValue Int(int64_t whole);
  static FileValue Number(double number);
  static FileValue Text(absl::string_view text);
  static FileValue List();
  static FileValue Tuple();
  static FileValue Dict();
  static FileValue Tensor(size_t index);

  // Of a dict. A key that is there already is not replaced, but hidden: readers refuse such a dict.
  void Add(FileValue key, FileValue value);
  // The value under a text, or null: no dict, or none such.
  const FileValue* Find(absl::string_view key) const;
};

// A stretch of a file. Its checksum is a zip archive's, where the file has one.
struct FileStorage {
  std::string name;  // for messages
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
  absl::optional<uint32_t> crc32;
};

// Elements of a storage. Readers have checked that all of them lie in it and are no more than it
// has.
struct FileTensor {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  int64_t offset_elements = 0;
  size_t storage = 0;  // of FileDocument::storages

  int64_t bytes() const;  // of its elements alone
  bool is_contiguous() const;
};

// Contiguous, from the beginning of a storage on.
FileTensor ContiguousTensor(TensorType type, std::vector<int64_t> shape, size_t storage);

// What a file has. Thread-compatible value type.
struct FileDocument {
  FileValue value;
  std::vector<FileTensor> tensors;
  std::vector<FileStorage> storages;
};

// Gives `bytes` bytes of a tensor's elements in C order, from `offset_bytes` on. They stay as they
// are until the next call. Writers ask for each tensor's bytes once, in order.
using TensorBytes = std::function<absl::StatusOr<absl::string_view>(
    size_t tensor, int64_t offset_bytes, int64_t bytes)>;

// After each piece, with the bytes of tensors that are done and those that there are. May be empty.
using FileProgress = std::function<void(int64_t done, int64_t all)>;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_FILE_VALUE_H_
