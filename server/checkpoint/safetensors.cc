#include "server/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/parameter_space.h"
#include "common/request_limits.h"
#include "common/utf8_prefix.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kMostShown = 100;

struct TypeEntry {
  TensorType type;
  absl::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeEntry, 15> kTypes = {{
    {TensorType::kBool, "BOOL", 1},
    {TensorType::kU8, "U8", 1},
    {TensorType::kI8, "I8", 1},
    {TensorType::kF8E5M2, "F8_E5M2", 1},
    {TensorType::kF8E4M3, "F8_E4M3", 1},
    {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},
    {TensorType::kF16, "F16", 2},
    {TensorType::kBF16, "BF16", 2},
    {TensorType::kI32, "I32", 4},
    {TensorType::kU32, "U32", 4},
    {TensorType::kF32, "F32", 4},
    {TensorType::kI64, "I64", 8},
    {TensorType::kU64, "U64", 8},
    {TensorType::kF64, "F64", 8},
}};

const TypeEntry& EntryOf(TensorType type) { return kTypes[static_cast<size_t>(type)]; }

std::string KnownTypes() {
  std::string names;
  for (const TypeEntry& entry : kTypes) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  }
  return names;
}

std::string Named(absl::string_view name) {
  return absl::StrCat("tensor \"", EscapeName(Utf8Prefix(name, kMostShown)), "\"");
}

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a tensor's name is empty");
  if (name.size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(Named(name), ": its name has ", name.size(),
                                                   " bytes, at most ", kMaxTensorNameBytes));
  }
  if (HasControlCharacters(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Named(name), ": its name has control characters"));
  }
  return absl::OkStatus();
}

// Of a known type and extents that are not negative.
absl::StatusOr<int64_t> BytesOf(const SafetensorsTensor& tensor) {
  const int64_t elements = ElementsOf(tensor.shape);
  if (elements > INT64_MAX / SizeOf(tensor.type)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Named(tensor.name), ": its shape has more elements than a file can have bytes"));
  }
  return elements * SizeOf(tensor.type);
}

std::vector<int64_t> ReadNumbers(const JsonFields& fields, absl::string_view name, size_t most) {
  std::vector<int64_t> numbers;
  for (const Json& number : fields.Array(name, most)) {
    const bool whole = number.is_number_unsigned() && number.get<uint64_t>() <= INT64_MAX;
    if (!whole) {
      fields.Refuse(name,
                    absl::StrCat("it has ", number.is_number() ? number.dump() : number.type_name(),
                                 ", expected whole numbers from 0 to ", INT64_MAX));
      return {};
    }
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

absl::StatusOr<SafetensorsTensor> ReadTensor(const std::string& name, const Json& json) {
  absl::Status error = CheckName(name);
  if (!error.ok()) return error;
  SafetensorsTensor tensor;
  tensor.name = name;
  const JsonFields fields(json, Named(name), error);
  const std::string type = fields.Text("dtype", kMostShown);
  tensor.shape = ReadNumbers(fields, "shape", kMaxDimensions);
  const std::vector<int64_t> offsets = ReadNumbers(fields, "data_offsets", 2);
  if (!error.ok()) return error;

  const auto known = TensorTypeNamed(type);
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat(Named(name), ": its dtype is \"", type, "\", expected one of ", KnownTypes()));
  }
  tensor.type = *known;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return absl::InvalidArgumentError(absl::StrCat(Named(name), ": its data_offsets are ",
                                                   json["data_offsets"].dump(),
                                                   ", expected where it begins and ends"));
  }
  tensor.offset_bytes = offsets[0];
  tensor.bytes = offsets[1] - offsets[0];
  const auto bytes = BytesOf(tensor);
  if (!bytes.ok()) return bytes.status();
  if (*bytes != tensor.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Named(name), ": its data_offsets give ",
                                                   tensor.bytes, " bytes, its shape and dtype ",
                                                   *bytes));
  }
  return tensor;
}

absl::Status ReadMetadata(const Json& json, std::map<std::string, std::string>& metadata) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kMetadata, " is ", json.type_name(), ", not an object"));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kMetadata, " has ", value.type_name(), " under \"",
                       EscapeName(Utf8Prefix(key, kMostShown)), "\", expected a text"));
    }
    metadata[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

// That the tensors, in order, cover the data without overlap and gap.
absl::Status CheckCover(const std::vector<SafetensorsTensor>& tensors, int64_t data_bytes) {
  int64_t end = 0;
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.offset_bytes < end) {
      return absl::InvalidArgumentError(absl::StrCat(Named(tensor.name), " begins at byte ",
                                                     tensor.offset_bytes, " of the data, within ",
                                                     Named(before->name), ", which ends at ", end));
    }
    if (tensor.offset_bytes > end) {
      return absl::InvalidArgumentError(absl::StrCat("bytes ", end, " to ", tensor.offset_bytes,
                                                     " of the data, before ", Named(tensor.name),
                                                     ", belong to no tensor"));
    }
    if (tensor.bytes > data_bytes - end) {
      return absl::InvalidArgumentError(
          absl::StrCat("the file is cut off: ", Named(tensor.name), " ends at byte ",
                       end + tensor.bytes, " of the data, of which there are ", data_bytes));
    }
    end += tensor.bytes;
    before = &tensor;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the data has ", data_bytes,
                                                   " bytes, of which the last ", data_bytes - end,
                                                   " belong to no tensor"));
  }
  return absl::OkStatus();
}

// Of the JSON that follows.
uint64_t LengthOf(absl::string_view bytes) {
  uint64_t length = 0;
  for (int i = kSafetensorsLengthBytes - 1; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(bytes[static_cast<size_t>(i)]);
  }
  return length;
}

std::string ShapeJson(const std::vector<int64_t>& shape) { return Json(shape).dump(); }

}  // namespace

int64_t SizeOf(TensorType type) { return EntryOf(type).bytes; }
absl::string_view NameOf(TensorType type) { return EntryOf(type).name; }

absl::optional<TensorType> TensorTypeNamed(absl::string_view name) {
  for (const TypeEntry& entry : kTypes) {
    if (entry.name == name) return entry.type;
  }
  return absl::nullopt;
}

int64_t SafetensorsHeader::data_bytes() const {
  return tensors.empty() ? 0 : tensors.back().offset_bytes + tensors.back().bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t file_bytes) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("its header does not begin with \"{\"");
  }
  const auto document = ParseStrictJson(json);
  if (!document.ok()) return errors::WithContext(document.status(), "its header");
  SafetensorsHeader header;
  header.data_begin_bytes = kSafetensorsLengthBytes + static_cast<int64_t>(json.size());
  for (const auto& [name, value] : document->items()) {
    if (name == kMetadata) {
      absl::Status read = ReadMetadata(value, header.metadata);
      if (!read.ok()) return read;
      continue;
    }
    auto tensor = ReadTensor(name, value);
    if (!tensor.ok()) return tensor.status();
    header.tensors.push_back(*std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::make_pair(a.offset_bytes, a.bytes) <
                     std::make_pair(b.offset_bytes, b.bytes);
            });
  absl::Status covered = CheckCover(header.tensors, file_bytes - header.data_begin_bytes);
  if (!covered.ok()) return covered;
  return header;
}

absl::StatusOr<absl::string_view> SafetensorsHeaderJson(absl::string_view bytes) {
  const bool has_length = bytes.size() >= static_cast<size_t>(kSafetensorsLengthBytes);
  if (!has_length || LengthOf(bytes) != bytes.size() - kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("its header says that it has ",
                                                   has_length ? LengthOf(bytes) : 0,
                                                   " bytes, of a beginning of ", bytes.size()));
  }
  return bytes.substr(static_cast<size_t>(kSafetensorsLengthBytes));
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(File& file) {
  const auto size = file.Size();
  if (!size.ok()) return size.status();
  const auto wrong = [&file](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is not a safetensors file: ", what));
  };
  std::array<char, kSafetensorsLengthBytes> length_bytes;
  const auto got = file.ReadAt(0, absl::MakeSpan(length_bytes));
  if (!got.ok()) return got.status();
  if (*got < length_bytes.size()) {
    return wrong(absl::StrCat("it has ", *got, " bytes, fewer than the length of a header"));
  }
  const uint64_t length = LengthOf({length_bytes.data(), length_bytes.size()});
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return wrong(absl::StrCat("it says that its header has ", length, " bytes, at most ",
                              kMaxSafetensorsHeaderBytes));
  }
  if (static_cast<int64_t>(length) > *size - kSafetensorsLengthBytes) {
    return wrong(absl::StrCat("it is cut off within its header of ", length, " bytes: it has ",
                              *size, " in all"));
  }
  std::string json(static_cast<size_t>(length), '\0');
  const auto read = file.ReadAt(kSafetensorsLengthBytes, absl::MakeSpan(json));
  if (!read.ok()) return read.status();
  if (*read < json.size()) return wrong("it became shorter while it was read");
  auto header = ParseSafetensorsHeader(json, *size);
  if (!header.ok()) return wrong(header.status().message());
  return header;
}

absl::StatusOr<SafetensorsLayout> LayOutSafetensors(std::vector<SafetensorsTensor> tensors,
                                                    std::map<std::string, std::string> metadata,
                                                    int64_t alignment_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     return SizeOf(a.type) > SizeOf(b.type);
                   });
  std::string json = "{";
  const auto append_quoted = [&json](absl::string_view text) {
    const auto quoted = JsonQuoted(text);
    if (quoted.ok()) json += *quoted;
    return errors::WithContext(quoted.status(), EscapeName(Utf8Prefix(text, kMostShown)));
  };
  if (!metadata.empty()) {
    absl::StrAppend(&json, "\"", kMetadata, "\":{");
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      absl::Status appended = append_quoted(key);
      json += ':';
      if (appended.ok()) appended = append_quoted(value);
      if (!appended.ok()) return appended;
    }
    json += '}';
  }
  int64_t end = 0;
  std::set<absl::string_view> names = {kMetadata};
  for (SafetensorsTensor& tensor : tensors) {
    absl::Status named = CheckName(tensor.name);
    if (!named.ok()) return named;
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(Named(tensor.name), " is there twice"));
    }
    const auto bytes = BytesOf(tensor);
    if (!bytes.ok()) return bytes.status();
    tensor.offset_bytes = end;
    tensor.bytes = *bytes;
    if (tensor.bytes > INT64_MAX / 2 - end) {
      return absl::InvalidArgumentError(
          absl::StrCat(Named(tensor.name), ": the file would be too large"));
    }
    end += tensor.bytes;
    if (json.size() > 1) json += ',';
    absl::Status appended = append_quoted(tensor.name);
    if (!appended.ok()) return appended;
    absl::StrAppend(&json, ":{\"dtype\":\"", NameOf(tensor.type),
                    "\",\"shape\":", ShapeJson(tensor.shape), ",\"data_offsets\":[",
                    tensor.offset_bytes, ",", end, "]}");
  }
  json += '}';
  const int64_t unpadded = kSafetensorsLengthBytes + static_cast<int64_t>(json.size());
  json.append(static_cast<size_t>((alignment_bytes - unpadded % alignment_bytes) % alignment_bytes),
              ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a header of ", json.size(), " bytes, at most ", kMaxSafetensorsHeaderBytes));
  }
  SafetensorsLayout layout;
  for (int i = 0; i < kSafetensorsLengthBytes; ++i) {
    layout.bytes += static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i) & 0xff);
  }
  layout.bytes += json;
  layout.header.tensors = std::move(tensors);
  layout.header.metadata = std::move(metadata);
  layout.header.data_begin_bytes = static_cast<int64_t>(layout.bytes.size());
  return layout;
}

}  // namespace optshard
