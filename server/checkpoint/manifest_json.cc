#include "server/checkpoint/manifest_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/request_limits.h"
#include "common/utf8_prefix.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/hyperparameter_json.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

constexpr char kChecksumKey[] = "{\"checksum\": \"xxh3:";
constexpr char kBodyKey[] = "\", \"checkpoint\": ";
constexpr char kEnd[] = "}\n";
constexpr size_t kChecksumDigits = 16;
constexpr size_t kMaxEscapedBytes = 3 * kMaxParameterNameBytes;
constexpr size_t kMany = static_cast<size_t>(kMaxJsonValues);

ScalarValues ReadScalars(const JsonFields& fields, absl::string_view name) {
  ScalarValues scalars;
  if (!fields.Has(name)) return scalars;
  for (const auto& [key, value] : fields.Object(name).items()) {
    const auto number = NumberOf(value);
    if (!number) fields.Refuse(name, "one of its values is not a number");
    scalars[key] = number.value_or(0);
  }
  return scalars;
}

Json ScalarsJson(const ScalarValues& scalars) {
  Json json = Json::object();
  for (const auto& [name, value] : scalars) json[name] = NumberJson(value);
  return json;
}

// --- Groups.

Json GroupJson(const GroupRule& group) {
  Json hyperparameters = Json::object();
  for (const auto& [name, value] : group.hyperparameters.values()) {
    hyperparameters[name] = HyperJson(value);
  }
  return {{"rule", group.name}, {"hyperparameters", std::move(hyperparameters)}};
}

GroupRule ReadGroup(const JsonFields& fields) {
  GroupRule group;
  group.name = fields.Text("rule", kMaxNameBytes);
  const Json& hyperparameters = fields.Object("hyperparameters");
  if (hyperparameters.size() > kMaxHyperparametersPerGroup) {
    fields.Refuse("hyperparameters", "there are too many");
    return group;
  }
  for (const auto& [name, value] : hyperparameters.items()) {
    auto hyper = HyperOf(value);
    if (!hyper) {
      fields.Refuse(
          "hyperparameters",
          absl::StrCat("\"", EscapeName(Utf8Prefix(name, kMaxNameBytes)), "\" is ",
                       value.type_name(), ", expected a flag, a number, a text or at most ",
                       kMaxNumbers, " numbers"));
      return group;
    }
    group.hyperparameters.Set(name, *std::move(hyper));
  }
  return group;
}

// --- Parameters.

std::vector<int64_t> ReadShape(const JsonFields& fields, absl::string_view name) {
  std::vector<int64_t> shape;
  for (const Json& extent : fields.Array(name, kMaxDimensions)) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT64_MAX) {
      fields.Refuse(name, "expected whole numbers that are not negative");
      return {};
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

Json ArrayJson(const CheckpointArray& array) {
  Json json = {{"name", array.name}, {"format", std::string(NameOf(array.format))}};
  if (array.shape) json["shape"] = *array.shape;
  return json;
}

CheckpointArray ReadArray(const JsonFields& fields) {
  CheckpointArray array;
  array.name = fields.Text("name", kMaxNameBytes);
  const std::string format = fields.Text("format", kMaxNameBytes);
  const auto known = ArrayFormatNamed(format);
  if (!known) fields.Refuse("format", absl::StrCat("\"", format, "\" is not known"));
  array.format = known.value_or(ArrayFormat::kFloat32);
  if (fields.Has("shape")) array.shape = ReadShape(fields, "shape");
  return array;
}

Json ParameterJson(const CheckpointParameter& parameter) {
  Json arrays = Json::array();
  for (const CheckpointArray& array : parameter.arrays) arrays.push_back(ArrayJson(array));
  Json json = {{"name", EscapeName(parameter.name)},
               {"shape", parameter.shape},
               {"dtype", std::string(NameOf(parameter.dtype))},
               {"group", parameter.group},
               {"steps", parameter.steps},
               {"arrays", std::move(arrays)}};
  if (!parameter.scalars.empty()) json["scalars"] = ScalarsJson(parameter.scalars);
  return json;
}

std::string ReadName(const JsonFields& fields) {
  auto name = UnescapeName(fields.Text("name", kMaxEscapedBytes));
  if (!name) fields.Refuse("name", "\"%\" is not followed by two hexadecimal digits");
  return name.value_or("");
}

CheckpointParameter ReadParameter(const JsonFields& fields, absl::Status& error) {
  CheckpointParameter parameter;
  parameter.name = ReadName(fields);
  parameter.shape = ReadShape(fields, "shape");
  const auto dtype = ParseDType(fields.Text("dtype", kMaxNameBytes));
  if (!dtype.ok()) fields.Refuse("dtype", dtype.status().message());
  parameter.dtype = dtype.value_or(DType::kFloat32);
  parameter.group = static_cast<int>(fields.Int("group", 0, kMaxGroups));
  parameter.steps = static_cast<StepNumber>(fields.Int("steps", 0, INT64_MAX));
  parameter.scalars = ReadScalars(fields, "scalars");
  size_t index = 0;
  for (const Json& array : fields.Array("arrays", kMany)) {
    parameter.arrays.push_back(ReadArray({array, fields.Place("arrays", index++), error}));
  }
  return parameter;
}

// --- Files.

Json TensorJson(const CheckpointTensor& tensor) {
  Json checksums = Json::array();
  for (const uint64_t checksum : tensor.checksums) checksums.push_back(ChecksumText(checksum));
  Json json = {{"name", tensor.name}, {"bytes", tensor.bytes}, {"checksums", std::move(checksums)}};
  if (tensor.is_blob()) return json;
  json["parameter"] = tensor.parameter;
  json["array"] = tensor.array;
  json["offset"] = tensor.offset_elements;
  json["elements"] = tensor.elements;
  if (tensor.part == ArrayPart::kScales) json["scales"] = true;
  return json;
}

uint64_t ReadChecksum(const JsonFields& fields, absl::string_view name, const Json& value) {
  const auto checksum =
      value.is_string() ? ParseChecksum(value.get_ref<const std::string&>()) : absl::nullopt;
  if (!checksum) fields.Refuse(name, "expected 16 hexadecimal digits in lower case");
  return checksum.value_or(0);
}

CheckpointTensor ReadTensor(const JsonFields& fields) {
  CheckpointTensor tensor;
  tensor.name = fields.Text("name", kMaxTensorNameBytes);
  tensor.bytes = fields.Int("bytes", 0, INT64_MAX);
  for (const Json& value : fields.Array("checksums", kMany)) {
    tensor.checksums.push_back(ReadChecksum(fields, "checksums", value));
    if (!fields.ok()) return tensor;
  }
  if (!fields.Has("parameter")) return tensor;
  tensor.parameter = static_cast<int>(fields.Int("parameter", 0, kMaxParameters));
  tensor.array = static_cast<int>(fields.Int("array", 0, INT32_MAX));
  tensor.offset_elements = fields.Int("offset", 0, INT64_MAX);
  tensor.elements = fields.Int("elements", 0, INT64_MAX);
  if (fields.Has("scales") && fields.Flag("scales")) tensor.part = ArrayPart::kScales;
  return tensor;
}

Json FileHeadJson(const CheckpointFile& file) {
  return {{"rank", file.rank},
          {"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_checksum", ChecksumText(file.header_checksum)}};
}

// With a line for each tensor.
std::string FileText(const CheckpointFile& file) {
  std::string text = FileHeadJson(file).dump();
  text.pop_back();
  absl::StrAppend(&text, ",\"tensors\":[");
  for (const CheckpointTensor& tensor : file.tensors) {
    absl::StrAppend(&text, text.back() == '[' ? "\n" : ",\n", TensorJson(tensor).dump());
  }
  return absl::StrCat(text, "]}");
}

CheckpointFile ReadFile(const JsonFields& fields, absl::Status& error) {
  CheckpointFile file;
  file.rank = static_cast<Rank>(fields.Int("rank", 0, kMaxWorldSize));
  file.name = fields.Text("name", kMaxNameBytes);
  file.bytes = fields.Int("bytes", 0, INT64_MAX);
  file.header_bytes = fields.Int("header_bytes", 0, INT64_MAX);
  file.header_checksum = ReadChecksum(fields, "header_checksum", fields.Value("header_checksum"));
  size_t index = 0;
  for (const Json& tensor : fields.Array("tensors", kMany)) {
    file.tensors.push_back(ReadTensor({tensor, fields.Place("tensors", index++), error}));
    if (!error.ok()) break;
  }
  return file;
}

// --- The whole.

template <typename Items, typename ToTextOf>
void AppendLines(absl::string_view name, const Items& items, const ToTextOf& text_of,
                 std::string& text) {
  absl::StrAppend(&text, ",\n\"", name, "\": [");
  for (const auto& item : items) {
    absl::StrAppend(&text, text.back() == '[' ? "\n" : ",\n", text_of(item));
  }
  absl::StrAppend(&text, "]");
}

std::string BodyText(const CheckpointManifest& manifest) {
  const std::pair<const char*, Json> head[] = {
      {"format_version", kCheckpointFormatVersion},
      {"job", manifest.job},
      {"optimizer", manifest.optimizer},
      {"step", manifest.step},
      {"generation", manifest.generation},
      {"world_size", manifest.world_size},
      {"policy", std::string(NameOf(manifest.policy))},
      {"saved_at_ms", absl::ToUnixMillis(manifest.saved_at)},
      {"labels", manifest.labels},
      {"checksum_block_bytes", kChecksumBlockBytes},
  };
  std::string text = "{";
  for (const auto& [name, value] : head) {
    absl::StrAppend(&text, text.size() == 1 ? "\n\"" : ",\n\"", name, "\": ", value.dump());
  }
  AppendLines(
      "groups", manifest.groups, [](const auto& g) { return GroupJson(g).dump(); }, text);
  AppendLines(
      "parameters", manifest.parameters, [](const auto& p) { return ParameterJson(p).dump(); },
      text);
  AppendLines("files", manifest.files, FileText, text);
  return absl::StrCat(text, "\n}", kEnd);
}

absl::StatusOr<CheckpointManifest> ReadManifest(const Json& document) {
  absl::Status error;
  const JsonFields fields(document, "", error);
  const int64_t version = fields.Int("format_version", 1, INT64_MAX);
  if (!error.ok()) return error;
  if (version > kCheckpointFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has format version ", version, ", this program reads up to ",
                     kCheckpointFormatVersion, ": read it with a newer optshard"));
  }
  CheckpointManifest manifest;
  manifest.job = fields.Text("job", kMaxNameBytes);
  manifest.optimizer = fields.Text("optimizer", kMaxNameBytes);
  manifest.step = static_cast<StepNumber>(fields.Int("step", 0, INT64_MAX));
  manifest.generation = static_cast<Generation>(fields.Int("generation", 0, INT64_MAX));
  manifest.world_size = static_cast<int>(fields.Int("world_size", 1, kMaxWorldSize));
  const auto policy = ParsePartitionPolicy(fields.Text("policy", kMaxNameBytes));
  if (!policy.ok()) fields.Refuse("policy", policy.status().message());
  manifest.policy = policy.value_or(PartitionPolicy::kGreedy);
  manifest.saved_at = absl::FromUnixMillis(fields.Int("saved_at_ms", 0, INT64_MAX / 1000));
  fields.Int("checksum_block_bytes", kChecksumBlockBytes, kChecksumBlockBytes);
  for (const Json& label : fields.Array("labels", kMaxLabels)) {
    if (!label.is_string()) fields.Refuse("labels", "expected texts");
    if (label.is_string()) manifest.labels.push_back(label.get<std::string>());
  }
  const auto read_each = [&](absl::string_view name, size_t most, const auto& read) {
    size_t index = 0;
    for (const Json& item : fields.Array(name, most)) {
      read(JsonFields(item, fields.Place(name, index++), error));
      if (!error.ok()) return;
    }
  };
  read_each("groups", kMaxGroups,
            [&](const JsonFields& group) { manifest.groups.push_back(ReadGroup(group)); });
  read_each("parameters", kMaxParameters, [&](const JsonFields& parameter) {
    manifest.parameters.push_back(ReadParameter(parameter, error));
  });
  read_each("files", kMaxWorldSize,
            [&](const JsonFields& file) { manifest.files.push_back(ReadFile(file, error)); });
  if (!error.ok()) return error;
  return manifest;
}

}  // namespace

std::string ToText(const CheckpointManifest& manifest) {
  const std::string body = BodyText(manifest);
  return absl::StrCat(kChecksumKey, ChecksumText(ChecksumOf(body)), kBodyKey, body);
}

absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text) {
  auto manifest = ParseDescription(text);
  if (!manifest.ok()) return manifest;
  absl::Status valid = manifest->Validate();
  if (!valid.ok()) return valid;
  return manifest;
}

absl::StatusOr<CheckpointManifest> ParseDescription(absl::string_view text) {
  absl::string_view body = text;
  if (!absl::ConsumePrefix(&body, kChecksumKey)) {
    return absl::InvalidArgumentError("it is not the manifest of a checkpoint of optshard");
  }
  const auto checksum = ParseChecksum(body.substr(0, kChecksumDigits));
  body.remove_prefix(std::min(kChecksumDigits, body.size()));
  if (!checksum || !absl::ConsumePrefix(&body, kBodyKey)) {
    return absl::DataLossError("it is damaged within its first line");
  }
  if (ChecksumOf(body) != *checksum) {
    return absl::DataLossError(absl::StrCat("it is damaged: its checksum is ",
                                            ChecksumText(*checksum), ", that of its content ",
                                            ChecksumText(ChecksumOf(body))));
  }
  if (!absl::ConsumeSuffix(&body, kEnd)) {
    return absl::InvalidArgumentError("it does not end with \"}\" and a line feed");
  }
  const auto document = ParseStrictJson(body);
  if (!document.ok()) return document.status();
  return ReadManifest(*document);
}

std::string ToText(const OwnerPart& part) {
  std::string text = absl::StrCat("{\"file\": ", FileText(part.file));
  AppendLines(
      "counts", part.counts,
      [](const ParameterCount& count) {
        Json json = {{"parameter", count.parameter}, {"steps", count.steps}};
        if (!count.scalars.empty()) json["scalars"] = ScalarsJson(count.scalars);
        return json.dump();
      },
      text);
  return absl::StrCat(text, "}\n");
}

absl::StatusOr<OwnerPart> ParseOwnerPart(absl::string_view text) {
  const auto document = ParseStrictJson(text);
  if (!document.ok()) return document.status();
  absl::Status error;
  const JsonFields fields(*document, "", error);
  OwnerPart part;
  part.file = ReadFile({fields.Object("file"), "file", error}, error);
  size_t index = 0;
  for (const Json& item : fields.Array("counts", kMaxParameters)) {
    const JsonFields count(item, fields.Place("counts", index++), error);
    part.counts.push_back({static_cast<int>(count.Int("parameter", 0, kMaxParameters)),
                           static_cast<StepNumber>(count.Int("steps", 0, INT64_MAX)),
                           ReadScalars(count, "scalars")});
    if (!error.ok()) break;
  }
  if (!error.ok()) return error;
  return part;
}

}  // namespace optshard
