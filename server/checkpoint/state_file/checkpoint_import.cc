#include "server/checkpoint/state_file/checkpoint_import.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/parameter_space.h"
#include "common/state_options.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/owner_writer.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

// What PyTorch's groups have beside a rule's options.
constexpr const char* kNoOptions[] = {"foreach",     "fused",  "capturable", "differentiable",
                                      "param_names", "params", "initial_lr"};
// PyTorch keeps it for Adam and AdamW; here they are two rules.
constexpr char kDecoupled[] = "decoupled_weight_decay";

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// One array of the checkpoint: a tensor of a file, or a value everywhere.
struct ArraySource {
  const StateFile* file = nullptr;
  const FileTensor* tensor = nullptr;
  double constant = 0;
};

absl::optional<ArrayFormat> FormatOfType(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return ArrayFormat::kFloat32;
    case TensorType::kF64:
      return ArrayFormat::kFloat64;
    case TensorType::kF16:
      return ArrayFormat::kFloat16;
    case TensorType::kBF16:
      return ArrayFormat::kBFloat16;
    case TensorType::kI8:
      return ArrayFormat::kInt8;
    default:
      return absl::nullopt;
  }
}

absl::optional<DType> DTypeOfType(TensorType type) {
  const auto format = FormatOfType(type);
  if (!format) return absl::nullopt;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (ArrayFormatOf(dtype) == *format) return dtype;
  }
  return absl::nullopt;
}

const FileTensor* TensorOf(const StateFile& file, const FileValue& value) {
  if (value.kind != FileKind::kTensor) return nullptr;
  return &file.document().tensors[static_cast<size_t>(value.whole)];
}

// A number, or a tensor of one.
absl::StatusOr<double> NumberOf(const StateFile& file, const FileValue& value) {
  if (value.kind == FileKind::kInt) return static_cast<double>(value.whole);
  if (value.kind == FileKind::kNumber) return value.number;
  const FileTensor* const tensor = TensorOf(file, value);
  if (tensor == nullptr || ElementsOf(tensor->shape) != 1) return Wrong("no number");
  std::string bytes(static_cast<size_t>(tensor->bytes()), '\0');
  absl::Status read = file.Read(*tensor, absl::MakeSpan(bytes));
  if (!read.ok()) return read;
  const auto as = [&bytes](auto number) {
    std::memcpy(&number, bytes.data(), sizeof(number));
    return static_cast<double>(number);
  };
  switch (tensor->type) {
    case TensorType::kF32:
      return as(float{});
    case TensorType::kF64:
      return as(double{});
    case TensorType::kI64:
      return as(int64_t{});
    case TensorType::kI32:
      return as(int32_t{});
    default:
      return Wrong("a number of ", NameOf(tensor->type));
  }
}

// As the option's type. None is 0, which stands for it here.
absl::StatusOr<HyperValue> HyperOf(const StateFile& file, const FileValue& value,
                                   const OptionSpec& option) {
  if (absl::holds_alternative<bool>(option.default_value)) {
    if (value.kind == FileKind::kFlag || value.kind == FileKind::kInt) {
      return HyperValue(value.whole != 0);
    }
    return Wrong(NameOf(value.kind), ", expected a bool");
  }
  if (absl::holds_alternative<std::string>(option.default_value)) {
    if (value.kind == FileKind::kNone) return option.default_value;
    if (value.kind == FileKind::kText) return HyperValue(value.text);
    return Wrong(NameOf(value.kind), ", expected a text");
  }
  const auto number = [&file](const FileValue& each) -> absl::StatusOr<double> {
    if (each.kind == FileKind::kNone) return 0;
    if (each.kind == FileKind::kFlag) return static_cast<double>(each.whole);
    return NumberOf(file, each);
  };
  if (!absl::holds_alternative<Numbers>(option.default_value)) {
    const auto only = number(value);
    if (!only.ok()) return only.status();
    return HyperValue(*only);
  }
  std::vector<double> numbers;
  if (value.elements.size() > kMaxNumbers) return Wrong("of too many numbers");
  for (const FileValue& each : value.elements) {
    const auto next = number(each);
    if (!next.ok()) return next.status();
    numbers.push_back(*next);
  }
  return HyperValue(Numbers(absl::MakeConstSpan(numbers)));
}

class Importer {
 public:
  explicit Importer(const CheckpointImport& import) : import_(import) {}

  absl::Status Read() {
    const FileValue* dict = &import_.state->document().value;
    if (!import_.key.empty()) dict = dict->Find(import_.key);
    const FileValue* const state = dict == nullptr ? nullptr : dict->Find("state");
    const FileValue* const groups = dict == nullptr ? nullptr : dict->Find("param_groups");
    if (state == nullptr || state->kind != FileKind::kDict || groups == nullptr ||
        groups->kind != FileKind::kList) {
      return Wrong(import_.state->path(),
                   " has no state dict of an optimizer, {\"state\": {...}, \"param_groups\": "
                   "[...]}, ",
                   import_.key.empty() ? "at its top" : absl::StrCat("under ", import_.key));
    }
    absl::Status read = ReadNames(*groups);
    for (size_t g = 0; g < groups->elements.size() && read.ok(); ++g) {
      read = ReadGroup(groups->elements[g], g, *state);
    }
    if (read.ok() && used_ != state->elements.size() / 2) {
      read = Wrong(import_.state->path(), " has state of a parameter that none of its groups has");
    }
    return read;
  }

  absl::StatusOr<std::string> Write(Directory& root, const FileProgress& progress) {
    CheckpointManifest manifest = manifest_;
    manifest.job = import_.job;
    manifest.optimizer = import_.optimizer;
    manifest.world_size = 1;
    manifest.saved_at = import_.saved_at;
    OwnerState owner;
    for (size_t p = 0; p < manifest.parameters.size(); ++p) {
      CheckpointParameter& parameter = manifest.parameters[p];
      owner.counts.push_back({static_cast<int>(p), parameter.steps, parameter.scalars});
      manifest.step = std::max(manifest.step, parameter.steps);
      for (size_t a = 0; a < parameter.arrays.size(); ++a) {
        OwnerSlice slice;
        slice.parameter = static_cast<int>(p);
        slice.array = static_cast<int>(a);
        slice.elements = parameter.ElementsOf(static_cast<int>(a));
        slice.values = SourceOf(sources_[p][a], parameter.arrays[a].format, slice.elements);
        owner.slices.push_back(std::move(slice));
      }
    }
    auto made = CreateCheckpoint(root, manifest.step);
    if (!made.ok()) return made.status();
    OwnerWriteOptions options;
    options.progress = progress;
    auto part = WriteOwnerFile(*made->directory, manifest.parameters, owner, options);
    if (!part.ok()) return part.status();
    std::vector<OwnerPart> parts;
    parts.push_back(*std::move(part));
    const auto whole = MakeManifest(std::move(manifest), std::move(parts));
    if (!whole.ok()) return whole.status();
    absl::Status committed = CommitCheckpoint(*made->directory, *whole);
    if (!committed.ok()) return committed;
    return made->name;
  }

 private:
  // The names of all parameters, over the groups.
  absl::Status ReadNames(const FileValue& groups) {
    size_t count = 0;
    for (const FileValue& group : groups.elements) {
      const FileValue* const params = group.Find("params");
      const FileValue* const names = group.Find("param_names");
      if (params == nullptr || params->kind != FileKind::kList) {
        return Wrong(import_.state->path(), ": a group has no list \"params\"");
      }
      count += params->elements.size();
      if (names == nullptr || names->elements.size() != params->elements.size()) continue;
      for (const FileValue& name : names->elements) names_.push_back(name.text);
    }
    if (!import_.names.empty()) names_ = import_.names;
    if (names_.size() == count) return absl::OkStatus();
    names_ = import_.model->names();
    if (import_.model->has_order() && names_.size() == count) return absl::OkStatus();
    return Wrong("which of the model's ", names_.size(), " tensors are the optimizer's ", count,
                 " parameters cannot be told: the state has no \"param_names\" for all of them; "
                 "construct the optimizer in Python with model.named_parameters(), or give their "
                 "names");
  }

  absl::Status ReadGroup(const FileValue& group, size_t index, const FileValue& state) {
    const std::string where = absl::StrCat("param_groups[", index, "]");
    if (import_.rules.size() != 1 && index >= import_.rules.size()) {
      return Wrong("there are ", import_.rules.size(),
                   " rules and more param groups: give one "
                   "for all, or one for each");
    }
    const std::string& name = import_.rules.size() == 1 ? import_.rules[0] : import_.rules[index];
    const auto rule = RuleRegistry::Find(name);
    if (!rule.ok()) return rule.status();
    Hyperparameters given;
    for (size_t i = 0; i < group.elements.size(); i += 2) {
      const std::string& option = group.elements[i].text;
      if (std::find(std::begin(kNoOptions), std::end(kNoOptions), option) != std::end(kNoOptions)) {
        continue;
      }
      const std::vector<OptionSpec>& known = (*rule)->spec().options;
      const auto spec = std::find_if(known.begin(), known.end(),
                                     [&](const OptionSpec& each) { return each.name == option; });
      const bool tells_rule = option == kDecoupled && spec == known.end();
      if (tells_rule && name == (group.elements[i + 1].whole != 0 ? "adamw" : "adam")) continue;
      if (spec == known.end()) {
        return Wrong(where, " has the option \"", EscapeName(option), "\", which the rule ", name,
                     " does not have",
                     tells_rule ? ": with it the rule is adamw, without it adam" : "");
      }
      const auto value = HyperOf(*import_.state, group.elements[i + 1], *spec);
      if (!value.ok()) {
        return errors::WithContext(value.status(), absl::StrCat(where, "[\"", option, "\"]"));
      }
      given.Set(option, *value);
    }
    const auto valid = (*rule)->Validate(given);
    if (!valid.ok()) return errors::WithContext(valid.status(), where);
    manifest_.groups.push_back({name, *valid});
    for (const FileValue& number : group.Find("params")->elements) {
      absl::Status read = ReadParameter(**rule, *valid, static_cast<int>(index), number, state);
      if (!read.ok()) return read;
    }
    return absl::OkStatus();
  }

  absl::Status ReadParameter(const UpdateRule& rule, const Hyperparameters& hyperparameters,
                             int group, const FileValue& number, const FileValue& state) {
    CheckpointParameter parameter;
    parameter.name = names_[manifest_.parameters.size()];
    parameter.group = group;
    const std::string what = absl::StrCat("parameter \"", EscapeName(parameter.name), "\"");
    const auto found = import_.model->Find(parameter.name);
    if (!found) return Wrong(import_.model->path(), " has no ", what);
    const FileTensor* const tensor = found->tensor;
    const auto dtype = DTypeOfType(tensor->type);
    if (!dtype) {
      return Wrong(what, " is of ", NameOf(tensor->type), ", expected floating-point numbers");
    }
    parameter.dtype = *dtype;
    parameter.shape = tensor->shape;
    parameter.arrays = {{kParameterArray, ArrayFormatOf(*dtype), absl::nullopt}};
    sources_.push_back({{found->file, tensor, 0}});
    const FileValue* slots = nullptr;
    for (size_t i = 0; i < state.elements.size(); i += 2) {
      if (state.elements[i].kind == FileKind::kInt && number.kind == FileKind::kInt &&
          state.elements[i].whole == number.whole) {
        slots = &state.elements[i + 1];
      }
    }
    absl::Status read = slots == nullptr ? InitialSlots(rule, hyperparameters, parameter)
                                         : ReadSlots(rule, hyperparameters, *slots, parameter);
    if (!read.ok()) return errors::WithContext(read, what);
    used_ += slots == nullptr ? 0 : 1;
    manifest_.parameters.push_back(std::move(parameter));
    return absl::OkStatus();
  }

  void AddArray(std::string name, ArrayFormat format, std::vector<int64_t> shape,
                const ArraySource& source, CheckpointParameter& parameter) {
    CheckpointArray array{std::move(name), format, absl::nullopt};
    if (shape != parameter.shape) array.shape = std::move(shape);
    parameter.arrays.push_back(std::move(array));
    sources_.back().push_back(source);
  }

  absl::Status InitialSlots(const UpdateRule& rule, const Hyperparameters& hyperparameters,
                            CheckpointParameter& parameter) {
    for (const Slot& slot : rule.Slots(hyperparameters)) {
      const auto shape = slot.ShapeFor(parameter.shape);
      if (!shape) continue;
      const ArrayFormat format =
          parameter.dtype == DType::kFloat64 ? ArrayFormat::kFloat64 : ArrayFormat::kFloat32;
      AddArray(slot.name, format, *shape, {nullptr, nullptr, slot.initial}, parameter);
    }
    const ScalarSlots initial = rule.InitialScalarSlots(hyperparameters);
    for (size_t k = 0; k < rule.spec().scalar_slots.size(); ++k) {
      parameter.scalars[rule.spec().scalar_slots[k].name] = initial[k];
    }
    return absl::OkStatus();
  }

  absl::Status ReadSlots(const UpdateRule& rule, const Hyperparameters& hyperparameters,
                         const FileValue& slots, CheckpointParameter& parameter) {
    size_t taken = 0;
    const auto find = [&](const std::string& name) {
      const FileValue* const value = slots.Find(name);
      const bool is_there = value != nullptr && value->kind != FileKind::kNone;
      taken += is_there ? 1 : 0;
      return is_there ? value : nullptr;
    };
    for (const Slot& slot : rule.Slots(hyperparameters)) {
      const auto shape = slot.ShapeFor(parameter.shape);
      if (!shape) continue;
      absl::Status read = ReadArray(slot.name, find(slot.name), *shape, parameter);
      if (!read.ok()) return read;
    }
    for (const char* const name : {kMasterSlot, kCorrectionSlot}) {
      const FileValue* const value = find(name);
      if (value == nullptr) continue;
      absl::Status read = ReadArray(name, value, parameter.shape, parameter);
      if (!read.ok()) return read;
    }
    for (const ScalarSlotSpec& scalar : rule.spec().scalar_slots) {
      absl::Status read =
          ReadNumber(scalar.name, find(scalar.name), parameter.scalars[scalar.name]);
      if (!read.ok()) return read;
    }
    double steps = 1;  // of rules of which PyTorch keeps none: only whether it was updated matters
    const FileValue* const step = find(kStepSlot);
    if (step != nullptr || rule.spec().exports_step) {
      absl::Status read = ReadNumber(kStepSlot, step, steps);
      if (!read.ok()) return read;
    }
    if (!(steps >= 0 && steps <= 0x1p53 && steps == std::floor(steps))) {
      return Wrong("its step is ", steps, ", expected how often it was updated");
    }
    parameter.steps = static_cast<StepNumber>(steps);
    for (size_t i = 0; i < slots.elements.size(); i += 2) {
      taken += slots.elements[i + 1].kind == FileKind::kNone ? 1 : 0;
    }
    if (taken == slots.elements.size() / 2) return absl::OkStatus();
    std::vector<std::string> names;
    for (size_t i = 0; i < slots.elements.size(); i += 2) {
      names.push_back(EscapeName(slots.elements[i].text));
    }
    return Wrong("it has the slots ", absl::StrJoin(names, ", "), ", not all of which the rule ",
                 rule.spec().name, " has");
  }

  absl::Status ReadArray(const std::string& name, const FileValue* value,
                         const std::vector<int64_t>& shape, CheckpointParameter& parameter) {
    const FileTensor* const tensor = value == nullptr ? nullptr : TensorOf(*import_.state, *value);
    const auto format = tensor == nullptr ? absl::nullopt : FormatOfType(tensor->type);
    if (!format) return Wrong("its slot \"", name, "\" is missing, or no tensor of numbers");
    if (tensor->shape != shape) {
      return Wrong("its slot \"", name, "\" has the shape [", absl::StrJoin(tensor->shape, ", "),
                   "], expected [", absl::StrJoin(shape, ", "), "]");
    }
    AddArray(name, *format, shape, {import_.state, tensor, 0}, parameter);
    return absl::OkStatus();
  }

  absl::Status ReadNumber(const std::string& name, const FileValue* value, double& to) {
    const auto number = value == nullptr ? Wrong("missing") : NumberOf(*import_.state, *value);
    if (!number.ok()) {
      return Wrong("its slot \"", name, "\" is ", number.status().message());
    }
    to = *number;
    return absl::OkStatus();
  }

  // Reads a tensor when it is first asked for, and forgets the one before.
  TensorSource SourceOf(const ArraySource& source, ArrayFormat format, int64_t elements) {
    const ArraySource* const from = &source;
    return [this, from, format, elements](int64_t offset_bytes,
                                          int64_t bytes) -> absl::StatusOr<absl::string_view> {
      if (present_ != from) {
        buffer_.assign(static_cast<size_t>(PartBytes(format, ArrayPart::kValues, elements)), '\0');
        absl::Status read = Fill(*from, format);
        if (!read.ok()) return read;
        present_ = from;
      }
      return absl::string_view(buffer_).substr(static_cast<size_t>(offset_bytes),
                                               static_cast<size_t>(bytes));
    };
  }

  absl::Status Fill(const ArraySource& from, ArrayFormat format) {
    if (from.file != nullptr) return from.file->Read(*from.tensor, absl::MakeSpan(buffer_));
    const auto fill = [this](auto value) {
      for (size_t at = 0; at < buffer_.size(); at += sizeof(value)) {
        std::memcpy(&buffer_[at], &value, sizeof(value));
      }
    };
    if (format == ArrayFormat::kFloat64) {
      fill(from.constant);
    } else {
      fill(static_cast<float>(from.constant));
    }
    return absl::OkStatus();
  }

  const CheckpointImport& import_;
  std::vector<std::string> names_;
  CheckpointManifest manifest_;
  std::vector<std::vector<ArraySource>> sources_;  // by parameter and array
  size_t used_ = 0;                                // of the state's parameters
  const ArraySource* present_ = nullptr;
  std::string buffer_;
};

}  // namespace

absl::StatusOr<std::string> ImportCheckpoint(Directory& root, const CheckpointImport& import,
                                             const FileProgress& progress) {
  Importer importer(import);
  absl::Status read = importer.Read();
  if (!read.ok()) return read;
  return importer.Write(root, progress);
}

}  // namespace optshard
