#include "server/checkpoint/state_file/value_json.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint/hyperparameter_json.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

constexpr char kTuple[] = "tuple";
constexpr char kDict[] = "dict";

absl::StatusOr<Json> ListJson(const std::vector<FileValue>& elements) {
  Json list = Json::array();
  for (const FileValue& element : elements) {
    auto json = ValueJson(element);
    if (!json.ok()) return json.status();
    list.push_back(*std::move(json));
  }
  return list;
}

absl::StatusOr<Json> DictJson(const std::vector<FileValue>& elements) {
  Json list = Json::array();
  for (size_t i = 0; i + 1 < elements.size(); i += 2) {
    auto pair = ListJson({elements[i], elements[i + 1]});
    if (!pair.ok()) return pair.status();
    list.push_back(*std::move(pair));
  }
  return list;
}

absl::Status ReadElements(const Json& list, std::vector<FileValue>& elements) {
  for (const Json& element : list) {
    auto value = ValueOfJson(element);
    if (!value.ok()) return value.status();
    elements.push_back(*std::move(value));
  }
  return absl::OkStatus();
}

absl::Status Unknown(const Json& json) {
  return absl::InvalidArgumentError(
      absl::StrCat("its metadata has ", json.type_name(), " that stands for no value of Python"));
}

absl::StatusOr<FileValue> ObjectValue(const Json& json) {
  const auto number = NumberOf(json);
  if (number) return FileValue::Number(*number);
  const Json& only = json.size() == 1 ? json.begin().value() : json;
  if (!only.is_array()) return Unknown(json);
  const bool is_tuple = json.begin().key() == kTuple;
  if (!is_tuple && json.begin().key() != kDict) return Unknown(json);
  FileValue value = is_tuple ? FileValue::Tuple() : FileValue::Dict();
  if (is_tuple) {
    absl::Status read = ReadElements(only, value.elements);
    if (!read.ok()) return read;
    return value;
  }
  for (const Json& pair : only) {
    if (!pair.is_array() || pair.size() != 2) return Unknown(pair);
    absl::Status read = ReadElements(pair, value.elements);
    if (!read.ok()) return read;
  }
  return value;
}

}  // namespace

absl::StatusOr<Json> ValueJson(const FileValue& value) {
  switch (value.kind) {
    case FileKind::kNone:
      return Json(nullptr);
    case FileKind::kFlag:
      return Json(value.whole != 0);
    case FileKind::kInt:
      return Json(value.whole);
    case FileKind::kNumber:
      return NumberJson(value.number);
    case FileKind::kText:
      return Json(value.text);
    case FileKind::kList:
      return ListJson(value.elements);
    case FileKind::kTuple:
    case FileKind::kDict: {
      const bool is_tuple = value.kind == FileKind::kTuple;
      auto list = is_tuple ? ListJson(value.elements) : DictJson(value.elements);
      if (!list.ok()) return list.status();
      Json json = Json::object();
      json[is_tuple ? kTuple : kDict] = *std::move(list);
      return json;
    }
    case FileKind::kTensor:
      break;
  }
  return absl::InvalidArgumentError("a tensor, which only a .pt file has at this place");
}

absl::StatusOr<FileValue> ValueOfJson(const Json& json) {
  if (json.is_null()) return FileValue();
  if (json.is_boolean()) return FileValue::Flag(json.get<bool>());
  if (json.is_string()) return FileValue::Text(json.get_ref<const std::string&>());
  if (json.is_number_float()) return FileValue::Number(json.get<double>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) return Unknown(json);
  if (json.is_number_integer()) return FileValue::Int(json.get<int64_t>());
  if (json.is_object()) return ObjectValue(json);
  FileValue list = FileValue::List();
  absl::Status read = ReadElements(json, list.elements);
  if (!read.ok()) return read;
  return list;
}

}  // namespace optshard
