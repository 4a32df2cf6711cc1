#include "server/checkpoint/state_file/file_value.h"

#include <utility>

#include "common/checked_math.h"
#include "common/parameter_space.h"

namespace optshard {
namespace {

FileValue OfKind(FileKind kind) {
  FileValue value;
  value.kind = kind;
  return value;
}

}  // namespace

absl::string_view NameOf(FileKind kind) {
  switch (kind) {
    case FileKind::kNone:
      return "None";
    case FileKind::kFlag:
      return "a bool";
    case FileKind::kInt:
      return "an int";
    case FileKind::kNumber:
      return "a float";
    case FileKind::kText:
      return "a text";
    case FileKind::kList:
      return "a list";
    case FileKind::kTuple:
      return "a tuple";
    case FileKind::kDict:
      return "a dict";
    case FileKind::kTensor:
      break;
  }
  return "a tensor";
}

FileValue FileValue::Flag(bool flag) {
  FileValue value = OfKind(FileKind::kFlag);
  value.whole = flag ? 1 : 0;
  return value;
}

FileValue FileValue::Int(int64_t whole) {
  FileValue value = OfKind(FileKind::kInt);
  value.whole = whole;
  return value;
}

FileValue FileValue::Number(double number) {
  FileValue value = OfKind(FileKind::kNumber);
  value.number = number;
  return value;
}

FileValue FileValue::Text(absl::string_view text) {
  FileValue value = OfKind(FileKind::kText);
  value.text = std::string(text);
  return value;
}

FileValue FileValue::List() { return OfKind(FileKind::kList); }
FileValue FileValue::Tuple() { return OfKind(FileKind::kTuple); }
FileValue FileValue::Dict() { return OfKind(FileKind::kDict); }

FileValue FileValue::Tensor(size_t index) {
  FileValue value = OfKind(FileKind::kTensor);
  value.whole = static_cast<int64_t>(index);
  return value;
}

void FileValue::Add(FileValue key, FileValue value) {
  elements.push_back(std::move(key));
  elements.push_back(std::move(value));
}

const FileValue* FileValue::Find(absl::string_view key) const {
  if (kind != FileKind::kDict) return nullptr;
  for (size_t i = 0; i + 1 < elements.size(); i += 2) {
    if (elements[i].kind == FileKind::kText && elements[i].text == key) return &elements[i + 1];
  }
  return nullptr;
}

int64_t FileTensor::bytes() const { return ElementsOf(shape) * SizeOf(type); }

bool FileTensor::is_contiguous() const {
  if (ElementsOf(shape) == 0) return true;
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

FileTensor ContiguousTensor(TensorType type, std::vector<int64_t> shape, size_t storage) {
  FileTensor tensor;
  tensor.type = type;
  tensor.strides.assign(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) {
    // One without elements may have extents whose product is no number.
    tensor.strides[d - 1] =
        SaturatingMultiply(tensor.strides[d], shape[d] == 0 ? int64_t{1} : shape[d]);
  }
  tensor.shape = std::move(shape);
  tensor.storage = storage;
  return tensor;
}

}  // namespace optshard
