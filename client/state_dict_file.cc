#include "client/state_dict_file.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/foreign_state_dicts.h"
#include "client/owner/tensor_files.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/state_file/state_file.h"

namespace optshard {
namespace {

constexpr char kState[] = "state";
constexpr char kParamGroups[] = "param_groups";
constexpr char kParams[] = "params";
constexpr size_t kMostKeysShown = 20;

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, 80)), "\"");
}

// --- Writing

// A document of the dict, and its tensors.
class DocumentMaker {
 public:
  absl::Status Make(const StateDict& dict) {
    FileValue state = FileValue::Dict();
    for (const auto& [index, values] : dict.state) {
      state.Add(FileValue::Int(index), ValuesOf(values, absl::StrCat(kState, "[", index, "]")));
    }
    FileValue groups = FileValue::List();
    for (const StateDict::Group& group : dict.param_groups) {
      const std::string where = absl::StrCat(kParamGroups, "[", groups.elements.size(), "]");
      FileValue values = ValuesOf(group.options, where);
      FileValue params = FileValue::List();
      for (const int64_t index : group.params) params.elements.push_back(FileValue::Int(index));
      values.Add(FileValue::Text(kParams), std::move(params));
      groups.elements.push_back(std::move(values));
    }
    document_.value = FileValue::Dict();
    document_.value.Add(FileValue::Text(kState), std::move(state));
    document_.value.Add(FileValue::Text(kParamGroups), std::move(groups));
    return error_;
  }

  const FileDocument& document() const { return document_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  FileValue ValuesOf(const StateValues& values, const std::string& where) {
    FileValue dict = FileValue::Dict();
    for (const auto& [name, value] : values) {
      dict.Add(FileValue::Text(name), ValueOf(value, absl::StrCat(where, "[\"", name, "\"]")));
    }
    return dict;
  }

  FileValue ValueOf(const c10::IValue& value, const std::string& where) {
    if (value.isNone()) return {};
    if (value.isBool()) return FileValue::Flag(value.toBool());
    if (value.isInt()) return FileValue::Int(value.toInt());
    if (value.isDouble()) return FileValue::Number(value.toDouble());
    if (value.isString()) return FileValue::Text(value.toStringRef());
    if (value.isTensor()) return TensorOf(value.toTensor(), where);
    if (value.isTuple()) {
      return Elements(FileValue::Tuple(), value.toTupleRef().elements(), where);
    }
    if (value.isList()) return Elements(FileValue::List(), value.toListRef(), where);
    error_.Update(absl::InvalidArgumentError(
        absl::StrCat(where, " is ", value.tagKind(), ", which a file of state does not hold")));
    return {};
  }

  template <typename Values>
  FileValue Elements(FileValue to, const Values& values, const std::string& where) {
    for (const c10::IValue& each : values) to.elements.push_back(ValueOf(each, where));
    return to;
  }

  FileValue TensorOf(const at::Tensor& tensor, const std::string& where) {
    error_.Update(CheckWritable(tensor, where));
    if (!error_.ok()) return {};
    const size_t index = tensors_.size();
    document_.tensors.push_back(
        ContiguousTensor(*TensorTypeOf(tensor.scalar_type()), tensor.sizes().vec(), index));
    tensors_.push_back(tensor);
    return FileValue::Tensor(index);
  }

  FileDocument document_;
  std::vector<at::Tensor> tensors_;
  absl::Status error_;
};

// --- Reading

absl::Status NoStateDict(const StateFile& file, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(),
                   " has no state dict of an optimizer, {\"state\": {0: {...}}, "
                   "\"param_groups\": [...]}: ",
                   what));
}

std::string KeysOf(const FileValue& value) {
  if (value.kind != FileKind::kDict) return std::string(NameOf(value.kind));
  std::string keys = "a dict with the keys ";
  for (size_t i = 0; i < value.elements.size() && i < 2 * kMostKeysShown; i += 2) {
    const FileValue& key = value.elements[i];
    absl::StrAppend(&keys, i == 0 ? "" : ", ",
                    key.kind == FileKind::kText ? Quoted(key.text) : absl::StrCat(key.whole));
  }
  return value.elements.size() > 2 * kMostKeysShown ? keys + ", ..." : keys;
}

class DictReader {
 public:
  explicit DictReader(const StateFile& file) : file_(file) {}

  absl::StatusOr<c10::IValue> Read(const FileValue& value) {
    switch (value.kind) {
      case FileKind::kNone:
        return c10::IValue();
      case FileKind::kFlag:
        return c10::IValue(value.whole != 0);
      case FileKind::kInt:
        return c10::IValue(value.whole);
      case FileKind::kNumber:
        return c10::IValue(value.number);
      case FileKind::kText:
        return c10::IValue(value.text);
      case FileKind::kTensor:
        return ReadTensorValue(static_cast<size_t>(value.whole));
      case FileKind::kTuple: {
        std::vector<c10::IValue> elements;
        absl::Status read =
            ReadAll(value, [&](const c10::IValue& each) { elements.push_back(each); });
        if (!read.ok()) return read;
        return c10::IValue(c10::ivalue::Tuple::create(std::move(elements)));
      }
      case FileKind::kList: {
        c10::impl::GenericList list(c10::AnyType::get());
        absl::Status read = ReadAll(value, [&](const c10::IValue& each) { list.push_back(each); });
        if (!read.ok()) return read;
        return c10::IValue(list);
      }
      case FileKind::kDict:
        break;
    }
    return ReadDict(value);
  }

 private:
  template <typename Add>
  absl::Status ReadAll(const FileValue& value, Add add) {
    for (const FileValue& element : value.elements) {
      absl::StatusOr<c10::IValue> each = Read(element);
      if (!each.ok()) return each.status();
      add(*each);
    }
    return absl::OkStatus();
  }

  // Dicts of LibTorch have keys of one type.
  absl::StatusOr<c10::IValue> ReadDict(const FileValue& value) {
    const bool numbers = !value.elements.empty() && value.elements[0].kind == FileKind::kInt;
    c10::impl::GenericDict dict(
        numbers ? c10::TypePtr(c10::IntType::get()) : c10::TypePtr(c10::StringType::get()),
        c10::AnyType::get());
    for (size_t i = 0; i < value.elements.size(); i += 2) {
      const FileValue& key = value.elements[i];
      if (key.kind != (numbers ? FileKind::kInt : FileKind::kText)) {
        return NoStateDict(file_, "a dict in it has keys of several kinds");
      }
      absl::StatusOr<c10::IValue> each = Read(value.elements[i + 1]);
      if (!each.ok()) return each.status();
      dict.insert(numbers ? c10::IValue(key.whole) : c10::IValue(key.text), *std::move(each));
    }
    return c10::IValue(dict);
  }

  absl::StatusOr<c10::IValue> ReadTensorValue(size_t index) {
    absl::StatusOr<at::Tensor> tensor = ReadTensor(file_, index);
    if (!tensor.ok()) return tensor.status();
    return c10::IValue(*std::move(tensor));
  }

  const StateFile& file_;
};

}  // namespace

absl::Status SaveStateDict(FileSystem& system, const StateDict& dict, const std::string& path) {
  const at::NoGradGuard no_grad;
  DocumentMaker maker;
  absl::Status made = maker.Make(dict);
  if (!made.ok()) return made;
  return WriteStateFile(system, path, maker.document(), BytesOf(maker.tensors()));
}

absl::Status SaveStateDict(const StateDict& dict, const std::string& path) {
  PosixFileSystem system;
  return SaveStateDict(system, dict, path);
}

absl::StatusOr<StateDict> LoadStateDict(FileSystem& system, const std::string& path,
                                        const std::string& key) {
  const c10::InferenceMode normal_tensors(false);
  const auto file = StateFile::Open(system, path);
  if (!file.ok()) return file.status();
  const FileValue* value = &(*file)->document().value;
  if (!key.empty()) {
    const FileValue* const under = value->Find(key);
    if (under == nullptr) {
      return NoStateDict(
          **file, absl::StrCat("under ", Quoted(key), " there is nothing; it is ", KeysOf(*value)));
    }
    value = under;
  }
  const FileValue* const state = value->Find(kState);
  const FileValue* const groups = value->Find(kParamGroups);
  if (state == nullptr || groups == nullptr) {
    return NoStateDict(**file,
                       absl::StrCat("it is ", KeysOf(*value),
                                    key.empty() ? "; give the key under which it is there" : ""));
  }
  // What else the dict has is not read.
  FileValue whole = FileValue::Dict();
  whole.Add(FileValue::Text(kState), *state);
  whole.Add(FileValue::Text(kParamGroups), *groups);
  const auto read = DictReader(**file).Read(whole);
  if (!read.ok()) return read.status();
  const auto dict = StateDictFromIValue(*read);
  if (!dict.ok()) return NoStateDict(**file, std::string(dict.status().message()));
  return FromBitsAndBytes(*dict);
}

absl::StatusOr<StateDict> LoadStateDict(const std::string& path, const std::string& key) {
  PosixFileSystem system;
  return LoadStateDict(system, ResolvedPath(path), key);
}

}  // namespace optshard
