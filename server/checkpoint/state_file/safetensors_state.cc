#include "server/checkpoint/state_file/safetensors_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/state_file/value_json.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "format";
constexpr char kVersionKey[] = "optshard_state_dict";
constexpr char kVersion[] = "1";
constexpr char kState[] = "state";
constexpr char kParamGroups[] = "param_groups";
constexpr int64_t kPieceBytes = int64_t{1} << 20;

absl::Status NoStateDict(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "a .safetensors file takes the state dict of an optimizer, {\"state\": {0: {...}}, "
      "\"param_groups\": [...]}, and ",
      where, " is ", what));
}

// JSON's own text fails where a text is not UTF-8.
absl::StatusOr<std::string> TextOf(const Json& json, absl::string_view where) {
  try {
    return json.dump();
  } catch (const Json::type_error&) {
    return NoStateDict(where, "a text that is not UTF-8");
  }
}

absl::StatusOr<Json> GroupsJson(const FileValue& groups) {
  Json list = Json::array();
  for (size_t g = 0; g < groups.elements.size(); ++g) {
    const FileValue& group = groups.elements[g];
    const std::string where = absl::StrCat(kParamGroups, "[", g, "]");
    if (group.kind != FileKind::kDict) return NoStateDict(where, NameOf(group.kind));
    Json object = Json::object();
    for (size_t i = 0; i < group.elements.size(); i += 2) {
      const FileValue& key = group.elements[i];
      if (key.kind != FileKind::kText) return NoStateDict(where + "'s key", NameOf(key.kind));
      auto value = ValueJson(group.elements[i + 1]);
      if (!value.ok()) {
        return NoStateDict(absl::StrCat(where, "[\"", EscapeName(key.text), "\"]"),
                           value.status().message());
      }
      object[key.text] = *std::move(value);
    }
    list.push_back(std::move(object));
  }
  return list;
}

class StateWalk {
 public:
  explicit StateWalk(const FileDocument& document)
      : document_(document), tensors_(document.tensors.size()) {}

  absl::Status Walk(const FileValue& state) {
    for (size_t i = 0; i < state.elements.size(); i += 2) {
      const FileValue& key = state.elements[i];
      if (key.kind != FileKind::kInt || key.whole < 0) {
        return NoStateDict("a key of \"state\"", NameOf(key.kind));
      }
      absl::Status walked = WalkSlots(key.whole, state.elements[i + 1]);
      if (!walked.ok()) return walked;
    }
    for (const SafetensorsTensor& tensor : tensors_) {
      if (tensor.name.empty()) return NoStateDict("a tensor", "outside of \"state\"");
    }
    return absl::OkStatus();
  }

  std::vector<SafetensorsTensor> tensors() { return std::move(tensors_); }
  const Json& others() const { return others_; }

 private:
  absl::Status WalkSlots(int64_t parameter, const FileValue& slots) {
    const std::string where = absl::StrCat("state[", parameter, "]");
    if (slots.kind != FileKind::kDict) return NoStateDict(where, NameOf(slots.kind));
    for (size_t i = 0; i < slots.elements.size(); i += 2) {
      const FileValue& name = slots.elements[i];
      const FileValue& value = slots.elements[i + 1];
      if (name.kind != FileKind::kText) return NoStateDict(where + "'s key", NameOf(name.kind));
      if (value.kind == FileKind::kTensor) {
        const auto index = static_cast<size_t>(value.whole);
        SafetensorsTensor& tensor = tensors_[index];
        if (!tensor.name.empty()) return NoStateDict(where, "a tensor that is there twice");
        tensor.name = absl::StrCat(kState, ".", parameter, ".", name.text);
        tensor.type = document_.tensors[index].type;
        tensor.shape = document_.tensors[index].shape;
        continue;
      }
      auto json = ValueJson(value);
      if (!json.ok()) {
        return NoStateDict(absl::StrCat(where, "[\"", EscapeName(name.text), "\"]"),
                           "a value with a tensor in it");
      }
      others_[absl::StrCat(parameter)][name.text] = *std::move(json);
    }
    return absl::OkStatus();
  }

  const FileDocument& document_;
  std::vector<SafetensorsTensor> tensors_;
  Json others_ = Json::object();
};

absl::StatusOr<Json> MetadataJson(const SafetensorsHeader& header, const std::string& key) {
  const auto found = header.metadata.find(key);
  if (found == header.metadata.end()) return absl::NotFoundError(key);
  auto json = ParseStrictJson(found->second);
  if (!json.ok()) {
    return errors::WithContext(json.status(), absl::StrCat("its metadata \"", key, "\""));
  }
  return json;
}

absl::Status WrongMetadata(absl::string_view key, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("its metadata \"", key, "\" ", what));
}

absl::StatusOr<FileValue> DictOf(const Json& object, absl::string_view key) {
  if (!object.is_object()) return WrongMetadata(key, "has something in place of an object");
  FileValue dict = FileValue::Dict();
  for (const auto& [name, json] : object.items()) {
    auto value = ValueOfJson(json);
    if (!value.ok()) return value.status();
    dict.Add(FileValue::Text(name), *std::move(value));
  }
  return dict;
}

absl::StatusOr<FileValue> GroupsOf(const SafetensorsHeader& header) {
  const auto json = MetadataJson(header, kParamGroups);
  if (absl::IsNotFound(json.status())) return WrongMetadata(kParamGroups, "is missing");
  if (!json.ok()) return json.status();
  if (!json->is_array()) return WrongMetadata(kParamGroups, "is no list");
  FileValue groups = FileValue::List();
  for (const Json& group : *json) {
    auto dict = DictOf(group, kParamGroups);
    if (!dict.ok()) return dict.status();
    groups.elements.push_back(*std::move(dict));
  }
  return groups;
}

using States = std::map<int64_t, FileValue>;  // by parameter

absl::StatusOr<FileValue*> StateOf(absl::string_view number, States& states) {
  int64_t parameter = 0;
  if (!absl::SimpleAtoi(number, &parameter) || absl::StrCat(parameter) != number || parameter < 0) {
    return absl::InvalidArgumentError(absl::StrCat("its state has the number \"",
                                                   EscapeName(number.substr(0, 40)),
                                                   "\", expected 0, 1, 2, ..."));
  }
  return &states.emplace(parameter, FileValue::Dict()).first->second;
}

absl::Status ReadState(const SafetensorsHeader& header, States& states) {
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    absl::string_view name = header.tensors[i].name;
    const size_t dot = name.find('.', sizeof(kState));
    if (!absl::StartsWith(name, absl::StrCat(kState, ".")) || dot == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("its tensor \"", EscapeName(name), "\" is not named as state.5.exp_avg is"));
    }
    const auto state = StateOf(name.substr(sizeof(kState), dot - sizeof(kState)), states);
    if (!state.ok()) return state.status();
    (*state)->Add(FileValue::Text(name.substr(dot + 1)), FileValue::Tensor(i));
  }
  const auto others = MetadataJson(header, kState);
  if (absl::IsNotFound(others.status())) return absl::OkStatus();
  if (!others.ok()) return others.status();
  if (!others->is_object()) return WrongMetadata(kState, "is no object");
  for (const auto& [number, slots] : others->items()) {
    const auto state = StateOf(number, states);
    if (!state.ok()) return state.status();
    auto dict = DictOf(slots, kState);
    if (!dict.ok()) return dict.status();
    for (size_t i = 0; i < dict->elements.size(); i += 2) {
      if ((*state)->Find(dict->elements[i].text) != nullptr) {
        return WrongMetadata(kState, "has a value that is a tensor, too");
      }
      (*state)->Add(std::move(dict->elements[i]), std::move(dict->elements[i + 1]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsState> ToSafetensors(const FileDocument& document) {
  const FileValue* const state = document.value.Find(kState);
  const FileValue* const groups = document.value.Find(kParamGroups);
  if (state == nullptr || state->kind != FileKind::kDict) {
    return NoStateDict("\"state\"", "no dict");
  }
  if (groups == nullptr || groups->kind != FileKind::kList) {
    return NoStateDict("\"param_groups\"", "no list");
  }
  if (document.value.elements.size() != 4) return NoStateDict("something else", "there");
  const auto groups_json = GroupsJson(*groups);
  if (!groups_json.ok()) return groups_json.status();
  StateWalk walk(document);
  absl::Status walked = walk.Walk(*state);
  if (!walked.ok()) return walked;

  SafetensorsState result;
  const auto groups_text = TextOf(*groups_json, kParamGroups);
  const auto others_text = TextOf(walk.others(), kState);
  if (!groups_text.ok()) return groups_text.status();
  if (!others_text.ok()) return others_text.status();
  result.metadata = {{kFormat, "pt"}, {kVersionKey, kVersion}, {kParamGroups, *groups_text}};
  if (!walk.others().empty()) result.metadata[kState] = *others_text;
  result.tensors = walk.tensors();
  return result;
}

absl::StatusOr<FileDocument> FromSafetensors(const SafetensorsHeader& header) {
  FileDocument document;
  for (const SafetensorsTensor& tensor : header.tensors) {
    document.tensors.push_back(
        ContiguousTensor(tensor.type, tensor.shape, document.storages.size()));
    document.storages.push_back(
        {tensor.name, header.data_begin_bytes + tensor.offset_bytes, tensor.bytes, absl::nullopt});
  }
  document.value = FileValue::Dict();
  const auto version = header.metadata.find(kVersionKey);
  if (version == header.metadata.end()) {
    for (size_t i = 0; i < header.tensors.size(); ++i) {
      document.value.Add(FileValue::Text(header.tensors[i].name), FileValue::Tensor(i));
    }
    return document;
  }
  if (version->second != kVersion) {
    return WrongMetadata(
        kVersionKey,
        absl::StrCat("is \"", EscapeName(version->second.substr(0, 40)), "\", expected \"",
                     kVersion, "\": it may be of a newer optshard"));
  }
  auto groups = GroupsOf(header);
  if (!groups.ok()) return groups.status();
  States states;
  absl::Status read = ReadState(header, states);
  if (!read.ok()) return read;
  FileValue state = FileValue::Dict();
  for (auto& [parameter, slots] : states) {
    state.Add(FileValue::Int(parameter), std::move(slots));
  }
  document.value.Add(FileValue::Text(kState), std::move(state));
  document.value.Add(FileValue::Text(kParamGroups), *std::move(groups));
  return document;
}

absl::Status WriteLaidOut(const SafetensorsLayout& layout, const TensorBytes& source, File& file,
                          const FileProgress& progress) {
  absl::Status written = file.WriteAt(0, {layout.bytes});
  int64_t done = 0;
  for (size_t index = 0; index < layout.header.tensors.size(); ++index) {
    const SafetensorsTensor& tensor = layout.header.tensors[index];
    for (int64_t at = 0; at < tensor.bytes && written.ok();) {
      const int64_t piece = std::min(kPieceBytes, tensor.bytes - at);
      const auto given = source(index, at, piece);
      if (!given.ok()) return given.status();
      written = file.WriteAt(layout.header.data_begin_bytes + tensor.offset_bytes + at, {*given});
      at += piece;
      done += piece;
      if (progress) progress(done, layout.header.data_bytes());
    }
  }
  return written;
}

absl::Status WriteSafetensors(std::vector<SafetensorsTensor> tensors,
                              std::map<std::string, std::string> metadata,
                              const TensorBytes& source, File& file, const FileProgress& progress) {
  absl::flat_hash_map<std::string, size_t> index_of;
  for (const SafetensorsTensor& tensor : tensors) index_of.emplace(tensor.name, index_of.size());
  const auto layout = LayOutSafetensors(std::move(tensors), std::move(metadata));
  if (!layout.ok()) return errors::WithContext(layout.status(), file.path());
  const auto source_of = [&](size_t laid_out, int64_t offset_bytes, int64_t bytes) {
    return source(index_of.at(layout->header.tensors[laid_out].name), offset_bytes, bytes);
  };
  return WriteLaidOut(*layout, source_of, file, progress);
}

}  // namespace optshard
