#include "server/checkpoint/state_file/checkpoint_export.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/block_code.h"
#include "common/default_floating_point.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/state_file/model_files.h"
#include "server/checkpoint/state_file/state_file.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

// An array of the checkpoint, or one number, that is a tensor of a file.
struct Source {
  int parameter = 0;
  int array = -1;      // -1: a number
  std::string number;  // its bytes
};

template <typename T>
std::string BytesOf(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

TensorType TypeOf(const CheckpointArray& array) {
  return IsCoded(array.format) ? TensorType::kF32 : TypeOf(array.format, ArrayPart::kValues);
}

// Reads pieces of arrays into a buffer of its own. Pieces begin on the array's grid: writers ask
// for a MiB each. Bound to a thread.
class ArrayBytes {
 public:
  ArrayBytes(const CheckpointReader& checkpoint, std::vector<Source> sources)
      : checkpoint_(checkpoint), sources_(std::move(sources)) {}

  absl::StatusOr<absl::string_view> Read(size_t tensor, int64_t offset_bytes, int64_t bytes) {
    const Source& source = sources_[tensor];
    if (source.array < 0) {
      return absl::string_view(source.number)
          .substr(static_cast<size_t>(offset_bytes), static_cast<size_t>(bytes));
    }
    const CheckpointArray& array = checkpoint_.manifest()
                                       .parameters[static_cast<size_t>(source.parameter)]
                                       .arrays[static_cast<size_t>(source.array)];
    const int64_t size = SizeOf(TypeOf(array));
    buffer_.resize(static_cast<size_t>(bytes));
    absl::Status read =
        IsCoded(array.format)
            ? ReadCoded(source, *BlockCodeOf(array.format), offset_bytes / size, bytes / size)
            : checkpoint_.Read(source.parameter, source.array, ArrayPart::kValues,
                               offset_bytes / size, bytes / size, absl::MakeSpan(buffer_));
    if (!read.ok()) return read;
    return absl::string_view(buffer_);
  }

 private:
  absl::Status ReadCoded(const Source& source, BlockCode code, int64_t offset_elements,
                         int64_t elements) {
    codes_.resize(static_cast<size_t>(CodeBytes(code, elements)));
    scales_.resize(static_cast<size_t>(ScaleBytes(code, elements)));
    absl::Status read = checkpoint_.Read(source.parameter, source.array, ArrayPart::kValues,
                                         offset_elements, elements, absl::MakeSpan(codes_));
    if (read.ok()) {
      read = checkpoint_.Read(source.parameter, source.array, ArrayPart::kScales, offset_elements,
                              elements, absl::MakeSpan(scales_));
    }
    if (!read.ok()) return read;
    values_.resize(static_cast<size_t>(elements));
    const DefaultFloatingPoint mode;
    Decode({code, reinterpret_cast<uint8_t*>(codes_.data()), scales_.data()}, elements,
           values_.data());
    std::memcpy(buffer_.data(), values_.data(), buffer_.size());
    return absl::OkStatus();
  }

  const CheckpointReader& checkpoint_;
  const std::vector<Source> sources_;
  std::string buffer_;
  std::string codes_;
  std::string scales_;
  std::vector<float> values_;
};

TensorBytes BytesFrom(ArrayBytes& arrays) {
  return [&arrays](size_t tensor, int64_t offset_bytes, int64_t bytes) {
    return arrays.Read(tensor, offset_bytes, bytes);
  };
}

class StateMaker {
 public:
  explicit StateMaker(const CheckpointManifest& manifest) {
    FileValue state = FileValue::Dict();
    FileValue groups = FileValue::List();
    int64_t index = 0;
    for (size_t g = 0; g < manifest.groups.size(); ++g) {
      FileValue group = OptionsOf(manifest.groups[g]);
      FileValue names = FileValue::List();
      FileValue params = FileValue::List();
      for (size_t p = 0; p < manifest.parameters.size(); ++p) {
        const CheckpointParameter& parameter = manifest.parameters[p];
        if (parameter.group != static_cast<int>(g)) continue;
        names.elements.push_back(FileValue::Text(EscapeName(parameter.name)));
        params.elements.push_back(FileValue::Int(index));
        // As PyTorch: one that was never updated has no state.
        if (parameter.steps > 0) {
          state.Add(FileValue::Int(index), SlotsOf(parameter, static_cast<int>(p)));
        }
        ++index;
      }
      group.Add(FileValue::Text("param_names"), std::move(names));
      group.Add(FileValue::Text("params"), std::move(params));
      groups.elements.push_back(std::move(group));
    }
    document_.value = FileValue::Dict();
    document_.value.Add(FileValue::Text("state"), std::move(state));
    document_.value.Add(FileValue::Text("param_groups"), std::move(groups));
  }

  const FileDocument& document() const { return document_; }
  const std::vector<Source>& sources() const { return sources_; }

 private:
  FileValue AddTensor(TensorType type, std::vector<int64_t> shape, Source source) {
    const size_t index = document_.tensors.size();
    document_.tensors.push_back(ContiguousTensor(type, std::move(shape), index));
    sources_.push_back(std::move(source));
    return FileValue::Tensor(index);
  }

  FileValue SlotsOf(const CheckpointParameter& parameter, int index) {
    std::map<std::string, FileValue> slots;
    for (int a = 0; a < static_cast<int>(parameter.arrays.size()); ++a) {
      const CheckpointArray& array = parameter.arrays[static_cast<size_t>(a)];
      if (array.name == kParameterArray) continue;
      slots[array.name] = AddTensor(TypeOf(array), parameter.ShapeOf(a), {index, a, ""});
    }
    for (const auto& [name, value] : parameter.scalars) {
      slots[name] = AddTensor(TensorType::kF64, {}, {index, -1, BytesOf(value)});
    }
    slots["step"] =
        AddTensor(TensorType::kF32, {}, {index, -1, BytesOf(static_cast<float>(parameter.steps))});
    FileValue dict = FileValue::Dict();
    for (auto& [name, value] : slots) dict.Add(FileValue::Text(name), std::move(value));
    return dict;
  }

  static FileValue ValueOf(const HyperValue& value) {
    if (const auto* flag = absl::get_if<bool>(&value)) return FileValue::Flag(*flag);
    if (const auto* number = absl::get_if<double>(&value)) return FileValue::Number(*number);
    if (const auto* choice = absl::get_if<std::string>(&value)) return FileValue::Text(*choice);
    FileValue tuple = FileValue::Tuple();
    for (const double number : absl::get<Numbers>(value)) {
      tuple.elements.push_back(FileValue::Number(number));
    }
    return tuple;
  }

  // All of the rule's options, where the rule is known here.
  static FileValue OptionsOf(const GroupRule& group) {
    std::map<std::string, HyperValue> values = group.hyperparameters.values();
    const auto rule = RuleRegistry::Find(group.name);
    if (rule.ok()) {
      for (const OptionSpec& option : (*rule)->spec().options) {
        values.emplace(option.name, option.default_value);
      }
    }
    FileValue dict = FileValue::Dict();
    for (const auto& [name, value] : values) {
      FileValue converted = ValueOf(value);
      // What is no float in PyTorch: Muon's ns_steps is an int, and Adafactor's 0 a None.
      if (name == "ns_steps" && converted.kind == FileKind::kNumber) {
        converted = FileValue::Int(static_cast<int64_t>(converted.number));
      } else if (group.name == "adafactor" && name == "eps" && !converted.elements.empty() &&
                 converted.elements[0].number == 0) {
        converted.elements[0] = FileValue();
      }
      dict.Add(FileValue::Text(name), std::move(converted));
    }
    return dict;
  }

  FileDocument document_;
  std::vector<Source> sources_;
};

}  // namespace

absl::Status ExportState(const CheckpointReader& checkpoint, FileSystem& system,
                         absl::string_view path, const FileProgress& progress) {
  const StateMaker maker(checkpoint.manifest());
  ArrayBytes arrays(checkpoint, maker.sources());
  return WriteStateFile(system, path, maker.document(), BytesFrom(arrays), progress);
}

absl::Status ExportModel(const CheckpointReader& checkpoint, Directory& directory,
                         int64_t shard_bytes, const FileProgress& progress) {
  const CheckpointManifest& manifest = checkpoint.manifest();
  std::vector<SafetensorsTensor> tensors;
  std::vector<Source> sources;
  for (size_t p = 0; p < manifest.parameters.size(); ++p) {
    const CheckpointParameter& parameter = manifest.parameters[p];
    for (size_t a = 0; a < parameter.arrays.size(); ++a) {
      const CheckpointArray& array = parameter.arrays[a];
      if (array.name != kParameterArray) continue;
      tensors.push_back(ModelTensor(parameter.name, TypeOf(array), parameter.shape));
      sources.push_back({static_cast<int>(p), static_cast<int>(a), ""});
    }
  }
  if (tensors.empty() && !manifest.parameters.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of step ", manifest.step, " has no parameters, only state"));
  }
  ArrayBytes arrays(checkpoint, std::move(sources));
  return WriteModel(directory, tensors, BytesFrom(arrays), shard_bytes, progress);
}

}  // namespace optshard
