#include "server/checkpoint/array_format.h"

#include <array>

#include "common/fatal.h"

namespace optshard {
namespace {

struct Entry {
  ArrayFormat format;
  absl::string_view name;
  TensorType values;
  TensorType scales;  // of coded ones
};
constexpr std::array<Entry, 9> kFormats = {{
    {ArrayFormat::kFloat32, "float32", TensorType::kF32, TensorType::kF32},
    {ArrayFormat::kFloat64, "float64", TensorType::kF64, TensorType::kF32},
    {ArrayFormat::kFloat16, "float16", TensorType::kF16, TensorType::kF32},
    {ArrayFormat::kBFloat16, "bfloat16", TensorType::kBF16, TensorType::kF32},
    {ArrayFormat::kInt8, "int8", TensorType::kI8, TensorType::kF32},
    {ArrayFormat::kDynamicSigned, "int8_dynamic_signed", TensorType::kU8, TensorType::kF32},
    {ArrayFormat::kDynamicUnsigned, "int8_dynamic_unsigned", TensorType::kU8, TensorType::kF32},
    {ArrayFormat::kCompandedAverage, "int8_companded_average", TensorType::kI8, TensorType::kF16},
    {ArrayFormat::kCompandedSquare, "int8_companded_square", TensorType::kU8, TensorType::kF16},
}};

const Entry& EntryOf(ArrayFormat format) { return kFormats[static_cast<size_t>(format)]; }

}  // namespace

absl::string_view NameOf(ArrayFormat format) { return EntryOf(format).name; }

absl::optional<ArrayFormat> ArrayFormatNamed(absl::string_view name) {
  for (const Entry& entry : kFormats) {
    if (entry.name == name) return entry.format;
  }
  return absl::nullopt;
}

ArrayFormat ArrayFormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ArrayFormat::kFloat32;
    case DType::kFloat64:
      return ArrayFormat::kFloat64;
    case DType::kFloat16:
      return ArrayFormat::kFloat16;
    case DType::kBFloat16:
      return ArrayFormat::kBFloat16;
  }
  Fatal("no array format of dtype %d", static_cast<int>(dtype));
}

ArrayFormat ArrayFormatOf(BlockCode code) {
  switch (code) {
    case BlockCode::kDynamicSigned:
      return ArrayFormat::kDynamicSigned;
    case BlockCode::kDynamicUnsigned:
      return ArrayFormat::kDynamicUnsigned;
    case BlockCode::kCompandedAverage:
      return ArrayFormat::kCompandedAverage;
    case BlockCode::kCompandedSquare:
      return ArrayFormat::kCompandedSquare;
  }
  Fatal("no array format of block code %d", static_cast<int>(code));
}

absl::optional<BlockCode> BlockCodeOf(ArrayFormat format) {
  switch (format) {
    case ArrayFormat::kDynamicSigned:
      return BlockCode::kDynamicSigned;
    case ArrayFormat::kDynamicUnsigned:
      return BlockCode::kDynamicUnsigned;
    case ArrayFormat::kCompandedAverage:
      return BlockCode::kCompandedAverage;
    case ArrayFormat::kCompandedSquare:
      return BlockCode::kCompandedSquare;
    default:
      return absl::nullopt;
  }
}

TensorType TypeOf(ArrayFormat format, ArrayPart part) {
  return part == ArrayPart::kValues ? EntryOf(format).values : EntryOf(format).scales;
}

int64_t PartElements(ArrayFormat format, ArrayPart part, int64_t elements) {
  if (part == ArrayPart::kValues) return elements;
  const int64_t block = BlockElements(*BlockCodeOf(format));
  return elements / block + (elements % block != 0 ? 1 : 0);
}

int64_t PartBytes(ArrayFormat format, ArrayPart part, int64_t elements) {
  return PartElements(format, part, elements) * SizeOf(TypeOf(format, part));
}

int64_t CutGrid(ArrayFormat format) { return IsCoded(format) ? kCodeGrid : 1; }

}  // namespace optshard
