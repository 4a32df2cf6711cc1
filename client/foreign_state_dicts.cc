#include "client/foreign_state_dicts.h"

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/owner/tensor_files.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/state_file/state_file.h"

namespace optshard {
namespace {

// --- bitsandbytes

// Since 0.45 it keeps what is coded in a dict of its own.
constexpr char kWrapped[] = "__bnb_optimizer_quant_state__";
constexpr int64_t kMapSize = 256;
constexpr int64_t kBlockSizes[] = {256, 2048};
// What its groups have beside PyTorch's options, for AdEMAMix alone.
constexpr const char* kOwnOptions[] = {"alpha", "t_alpha", "t_beta3"};

absl::StatusOr<StateValues> Unwrapped(const StateValues& values) {
  StateValues result = values;
  const auto wrapped = result.find(kWrapped);
  if (wrapped == result.end()) return result;
  if (!wrapped->second.isGenericDict()) {
    return absl::InvalidArgumentError(absl::StrCat("its ", kWrapped, " is no dict"));
  }
  const c10::IValue dict = wrapped->second;
  result.erase(wrapped);
  for (const auto& entry : dict.toGenericDict()) {
    if (entry.key().isString()) result.emplace(entry.key().toStringRef(), entry.value());
  }
  return result;
}

const at::Tensor* FindTensor(const StateValues& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end() || !found->second.isTensor()) return nullptr;
  return &found->second.toTensor();
}

// A slot's values: of codes each is the map's, times its block's scale.
absl::StatusOr<at::Tensor> ValuesOfSlot(const StateValues& values, int number) {
  const at::Tensor* const state = FindTensor(values, absl::StrCat("state", number));
  if (state == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has no tensor \"state", number,
                     "\": of the optimizers of bitsandbytes, Adam, AdamW "
                     "and LAMB can be loaded, each as the rule of that name"));
  }
  if (state->scalar_type() != at::kByte) return state->to(at::kFloat);
  const at::Tensor* const map = FindTensor(values, absl::StrCat("qmap", number));
  const at::Tensor* const scales = FindTensor(values, absl::StrCat("absmax", number));
  if (map == nullptr || scales == nullptr || map->numel() != kMapSize || scales->dim() != 1 ||
      !map->is_floating_point() || !scales->is_floating_point()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its \"state", number, "\" is of 8 bits, and \"qmap", number, "\" of ",
                     kMapSize, " numbers or \"absmax", number, "\" is missing"));
  }
  const int64_t elements = state->numel();
  for (const int64_t block : kBlockSizes) {
    if (scales->numel() != (elements + block - 1) / block) continue;
    const at::Tensor decoded =
        map->to(at::kFloat).index_select(0, state->reshape(-1).to(at::kLong));
    const at::Tensor scale = scales->to(at::kFloat).repeat_interleave(block).narrow(0, 0, elements);
    return decoded.mul(scale).reshape(state->sizes());
  }
  return absl::InvalidArgumentError(absl::StrCat("its \"absmax", number, "\" has ", scales->numel(),
                                                 " scales of ", elements,
                                                 " codes, expected one for each 256 or 2048"));
}

bool IsOfBitsAndBytes(const StateValues& values) {
  return values.count(kWrapped) != 0 || values.count("state1") != 0;
}

bool IsNothing(const c10::IValue& value) {
  return value.isNone() || (value.isDouble() && value.toDouble() == 0) ||
         (value.isInt() && value.toInt() == 0);
}

absl::StatusOr<StateValues> Converted(const StateValues& given) {
  absl::StatusOr<StateValues> values = Unwrapped(given);
  if (!values.ok()) return values.status();
  StateValues result;
  const auto step = values->find("step");
  if (step != values->end()) result.emplace("step", step->second);
  int number = 1;
  for (const char* const name : {"exp_avg", "exp_avg_sq"}) {
    absl::StatusOr<at::Tensor> slot = ValuesOfSlot(*values, number++);
    if (!slot.ok()) return slot.status();
    result.emplace(name, *std::move(slot));
  }
  return result;
}

// --- DeepSpeed

constexpr char kZero[] = "zero";
constexpr char kEnding[] = ".pt";
constexpr char kParam[] = "param";
constexpr char kParameterFile[] = "fp32";
constexpr char kStep[] = "step";

// A tensor, alone or as {"param": tensor}; a number.
absl::StatusOr<c10::IValue> ReadUniversalFile(Directory& directory, const std::string& name) {
  auto file = directory.OpenFile(name);
  if (!file.ok()) return file.status();
  const auto opened = StateFile::Open(*std::move(file));
  if (!opened.ok()) return opened.status();
  const FileValue& value = (*opened)->document().value;
  const FileValue* const under = value.Find(kParam);
  const FileValue& read = under == nullptr ? value : *under;
  if (read.kind == FileKind::kInt) return c10::IValue(read.whole);
  if (read.kind == FileKind::kNumber) return c10::IValue(read.number);
  if (read.kind != FileKind::kTensor) {
    return absl::InvalidArgumentError(
        absl::StrCat((*opened)->path(), " is ", NameOf(read.kind),
                     ", expected a tensor, or {\"param\": tensor} as ds_to_universal writes"));
  }
  absl::StatusOr<at::Tensor> tensor = ReadTensor(**opened, static_cast<size_t>(read.whole));
  if (!tensor.ok()) return tensor.status();
  return c10::IValue(*std::move(tensor));
}

// All that is there of a parameter.
absl::StatusOr<StateValues> ReadUniversalParameter(Directory& zero, const std::string& name) {
  const auto directory = zero.OpenDirectory(name);
  if (!directory.ok()) return directory.status();
  const auto entries = (*directory)->List();
  if (!entries.ok()) return entries.status();
  StateValues values;
  for (const DirectoryEntry& entry : *entries) {
    if (!absl::EndsWith(entry.name, kEnding)) continue;
    absl::StatusOr<c10::IValue> value = ReadUniversalFile(**directory, entry.name);
    if (!value.ok()) return value.status();
    values.emplace(entry.name.substr(0, entry.name.size() - sizeof(kEnding) + 1),
                   *std::move(value));
  }
  return values;
}

}  // namespace

absl::StatusOr<StateDict> FromBitsAndBytes(const StateDict& dict) {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  StateDict result = dict;
  bool is_its = false;
  for (auto& [index, values] : result.state) {
    if (!IsOfBitsAndBytes(values)) continue;
    is_its = true;
    absl::StatusOr<StateValues> converted = Converted(values);
    if (!converted.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("state[", index, "] of bitsandbytes: ", converted.status().message()));
    }
    values = *std::move(converted);
  }
  if (!is_its) return result;
  for (StateDict::Group& group : result.param_groups) {
    for (const char* const name : kOwnOptions) {
      const auto option = group.options.find(name);
      if (option != group.options.end() && IsNothing(option->second)) group.options.erase(option);
    }
  }
  return result;
}

absl::StatusOr<UniversalState> LoadDeepSpeedUniversal(
    FileSystem& system, const std::string& directory,
    const std::vector<std::vector<std::string>>& groups) {
  const c10::InferenceMode normal_tensors(false);
  const auto root = system.OpenDirectory(directory);
  if (!root.ok()) return root.status();
  const auto zero = (*root)->OpenDirectory(kZero);
  if (!zero.ok()) return zero.status();
  UniversalState result;
  int64_t next = 0;
  for (const std::vector<std::string>& names : groups) {
    result.dict.param_groups.emplace_back();
    for (const std::string& name : names) {
      absl::StatusOr<StateValues> values = ReadUniversalParameter(**zero, name);
      if (!values.ok()) return values.status();
      const auto parameter = values->find(kParameterFile);
      if (parameter != values->end()) {
        if (parameter->second.isTensor()) {
          result.parameters.emplace(name, parameter->second.toTensor());
        }
        values->erase(parameter);
      }
      result.dict.param_groups.back().params.push_back(next);
      // Alone it says nothing: such a parameter was never updated.
      const bool has_state = values->size() > values->count(kStep);
      if (has_state) result.dict.state.emplace(next, *std::move(values));
      ++next;
    }
  }
  return result;
}

absl::StatusOr<UniversalState> LoadDeepSpeedUniversal(
    const std::string& directory, const std::vector<std::vector<std::string>>& groups) {
  PosixFileSystem system;
  return LoadDeepSpeedUniversal(system, directory, groups);
}

}  // namespace optshard
