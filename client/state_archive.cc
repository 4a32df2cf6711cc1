#include "client/state_archive.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr char kVersion[] = "1.5.0";  // of the format

at::Tensor Number(size_t number) {
  return at::full({}, static_cast<int64_t>(number), at::TensorOptions(at::kLong));
}

// torch::optim counts steps in int64, and PyTorch in a tensor.
c10::IValue ArchivedValue(const std::string& name, const c10::IValue& value) {
  const bool counts = name == "step" && value.isTensor() && value.toTensor().numel() == 1;
  return counts ? c10::IValue(static_cast<int64_t>(value.toTensor().item<double>())) : value;
}

void WriteValues(const StateValues& values, OutputArchive& archive) {
  for (const auto& [name, value] : values) {
    if (name != "param_names") archive.write(name, ArchivedValue(name, value));
  }
}

absl::StatusOr<StateValues> ReadValues(InputArchive& archive) {
  StateValues values;
  for (const std::string& name : archive.keys()) {
    c10::IValue value;
    if (!archive.try_read(name, value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the archive has \"", name, "\" without a value"));
    }
    values.emplace(name, std::move(value));
  }
  return values;
}

size_t ReadNumber(InputArchive& archive, const std::string& name) {
  at::Tensor number;
  archive.read(name, number);
  return static_cast<size_t>(number.item<int64_t>());
}

// As ReadArchive, but torch throws where a part is missing.
absl::StatusOr<StateDict> ReadWhole(InputArchive& archive) {
  c10::IValue version;
  if (!archive.try_read("pytorch_version", version) || !version.isString() ||
      version.toStringRef() != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the archive is not that of an optimizer, or of LibTorch before ", kVersion,
                     ": save it again by torch::save(optimizer, path)"));
  }
  // Whoever wrote it has named the parameters by texts of its own.
  std::map<std::string, int64_t> index_of;
  StateDict dict;
  InputArchive groups;
  archive.read("param_groups", groups);
  const size_t group_count = ReadNumber(groups, "param_groups/size");
  for (size_t g = 0; g < group_count; ++g) {
    InputArchive of_group;
    groups.read(absl::StrCat("param_groups/", g), of_group);
    StateDict::Group group;
    const size_t size = ReadNumber(of_group, "params/size");
    for (size_t i = 0; i < size; ++i) {
      c10::IValue name;
      of_group.read(absl::StrCat("params/", i), name);
      const auto next = static_cast<int64_t>(index_of.size());
      group.params.push_back(index_of.emplace(name.toStringRef(), next).first->second);
    }
    InputArchive options;
    of_group.read("options", options);
    absl::StatusOr<StateValues> values = ReadValues(options);
    if (!values.ok()) return values.status();
    group.options = *std::move(values);
    dict.param_groups.push_back(std::move(group));
  }
  InputArchive state;
  archive.read("state", state);
  for (const std::string& name : state.keys()) {
    const auto known = index_of.find(name);
    if (known == index_of.end()) continue;  // as torch::optim does
    InputArchive of_parameter;
    state.read(name, of_parameter);
    absl::StatusOr<StateValues> values = ReadValues(of_parameter);
    if (!values.ok()) return values.status();
    dict.state.emplace(known->second, *std::move(values));
  }
  return dict;
}

}  // namespace

void WriteArchive(const StateDict& dict, OutputArchive& archive) {
  archive.write("pytorch_version", c10::IValue(kVersion));
  OutputArchive state(archive.compilation_unit());
  for (const auto& [index, values] : dict.state) {
    OutputArchive of_parameter(archive.compilation_unit());
    WriteValues(values, of_parameter);
    state.write(absl::StrCat(index), of_parameter);
  }
  archive.write("state", state);
  OutputArchive groups(archive.compilation_unit());
  groups.write("param_groups/size", Number(dict.param_groups.size()));
  for (size_t g = 0; g < dict.param_groups.size(); ++g) {
    const StateDict::Group& group = dict.param_groups[g];
    OutputArchive of_group(archive.compilation_unit());
    of_group.write("params/size", Number(group.params.size()));
    for (size_t i = 0; i < group.params.size(); ++i) {
      of_group.write(absl::StrCat("params/", i), c10::IValue(absl::StrCat(group.params[i])));
    }
    OutputArchive options(archive.compilation_unit());
    WriteValues(group.options, options);
    of_group.write("options", options);
    groups.write(absl::StrCat("param_groups/", g), of_group);
  }
  archive.write("param_groups", groups);
}

absl::StatusOr<StateDict> ReadArchive(InputArchive& archive) {
  try {
    return ReadWhole(archive);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the archive is not a whole one of an optimizer: ", error.what_without_backtrace()));
  }
}

}  // namespace optshard
