#include "server/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/blob_size.h"
#include "common/errors.h"
#include "common/parameter_space.h"
#include "common/request_limits.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/file_errors.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

// No rule has a tenth of them.
constexpr size_t kMaxArrays = 64;
constexpr int64_t kMaxArrayBytes = int64_t{1} << 60;
constexpr int64_t kMaxHeaderBytes = kMaxSafetensorsHeaderBytes + kSafetensorsLengthBytes;

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", EscapeName(name), "\""); }

absl::Status CheckText(absl::string_view what, absl::string_view text,
                       size_t most = kMaxNameBytes) {
  absl::Status length = CheckLength(what, text, most);
  if (!length.ok()) return length;
  if (HasControlCharacters(text)) return Wrong(what, " ", Quoted(text), " has control characters");
  if (!JsonQuoted(text).ok()) return Wrong(what, " ", Quoted(text), " is not UTF-8");
  return absl::OkStatus();
}

absl::Status CheckShape(absl::string_view what, const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxDimensions) {
    return Wrong(what, " has ", shape.size(), " dimensions, at most ", kMaxDimensions);
  }
  for (const int64_t extent : shape) {
    if (extent < 0) return Wrong(what, " has a negative extent, ", extent);
  }
  if (ElementsOf(shape) > kMaxArrayBytes / 8) return Wrong(what, " has too many elements");
  return absl::OkStatus();
}

absl::Status CheckParameter(const CheckpointParameter& parameter, size_t groups) {
  if (parameter.name.empty()) return Wrong("a parameter has no name");
  absl::Status length =
      CheckLength("the name of a parameter", parameter.name, kMaxParameterNameBytes);
  if (!length.ok()) return length;
  const std::string what = absl::StrCat("parameter ", Quoted(parameter.name));
  if (!IsKnown(parameter.dtype)) return Wrong(what, " has an unknown dtype");
  if (parameter.group < 0 || static_cast<size_t>(parameter.group) >= groups) {
    return Wrong(what, " is in group ", parameter.group, ", of ", groups, " groups");
  }
  if (parameter.steps > INT64_MAX) return Wrong(what, " has too many steps");
  if (parameter.arrays.size() > kMaxArrays) {
    return Wrong(what, " has ", parameter.arrays.size(), " arrays, at most ", kMaxArrays);
  }
  absl::Status shaped = CheckShape(what, parameter.shape);
  if (!shaped.ok()) return shaped;
  std::set<absl::string_view> names;
  for (const CheckpointArray& array : parameter.arrays) {
    if (array.name.empty()) return Wrong(what, " has an array without a name");
    absl::Status text = CheckText("the name of an array", array.name);
    if (!text.ok()) return text;
    if (!names.insert(array.name).second) return Wrong(what, " has two arrays ", array.name);
    if (array.shape) shaped = CheckShape(absl::StrCat(what, ": ", array.name), *array.shape);
    if (!shaped.ok()) return shaped;
  }
  for (const auto& [name, value] : parameter.scalars) {
    absl::Status text = CheckText("the name of a slot", name);
    if (!text.ok()) return text;
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const CheckpointManifest& manifest, const CheckpointTensor& tensor) {
  const std::string what = absl::StrCat("tensor ", Quoted(tensor.name));
  if (tensor.bytes < 0 ||
      tensor.checksums.size() != static_cast<size_t>(ChecksumBlocks(tensor.bytes))) {
    return Wrong(what, " has ", tensor.bytes, " bytes and ", tensor.checksums.size(),
                 " checksums, expected one for each ", kChecksumBlockBytes, " bytes");
  }
  if (tensor.is_blob()) {
    if (tensor.name != kBlobTensor) return Wrong(what, " is of no parameter");
    if (static_cast<size_t>(tensor.bytes) > kMaxBlobBytes) {
      return Wrong(what, " has ", tensor.bytes, " bytes, at most ", kMaxBlobBytes);
    }
    return absl::OkStatus();
  }
  if (static_cast<size_t>(tensor.parameter) >= manifest.parameters.size()) {
    return Wrong(what, " is of parameter ", tensor.parameter, ", of ", manifest.parameters.size());
  }
  const CheckpointParameter& parameter = manifest.parameters[static_cast<size_t>(tensor.parameter)];
  if (tensor.array < 0 || static_cast<size_t>(tensor.array) >= parameter.arrays.size()) {
    return Wrong(what, " is of array ", tensor.array, " of parameter ", Quoted(parameter.name),
                 ", which has ", parameter.arrays.size());
  }
  const ArrayFormat format = parameter.arrays[static_cast<size_t>(tensor.array)].format;
  if (tensor.part == ArrayPart::kScales && !IsCoded(format)) {
    return Wrong(what, " has scales of ", NameOf(format), " values, which need none");
  }
  const int64_t all = parameter.ElementsOf(tensor.array);
  if (tensor.offset_elements < 0 || tensor.elements < 0 || tensor.offset_elements > all ||
      tensor.elements > all - tensor.offset_elements) {
    return Wrong(what, " has ", tensor.elements, " elements from ", tensor.offset_elements,
                 " on, of an array of ", all);
  }
  const int64_t end = tensor.offset_elements + tensor.elements;
  if (tensor.offset_elements % CutGrid(format) != 0 || (end % CutGrid(format) != 0 && end != all)) {
    return Wrong(what, " has elements ", tensor.offset_elements, " to ", end,
                 ", which cuts a block of codes");
  }
  const int64_t bytes = PartBytes(format, tensor.part, tensor.elements);
  if (tensor.bytes != bytes) {
    return Wrong(what, " has ", tensor.bytes, " bytes, expected ", bytes);
  }
  const std::string name =
      TensorNameOf(parameter, tensor.array, tensor.part, tensor.offset_elements, tensor.elements);
  if (tensor.name != name) return Wrong(what, " should be ", Quoted(name));
  return absl::OkStatus();
}

absl::Status CheckFile(const CheckpointManifest& manifest, const CheckpointFile& file) {
  if (file.name != OwnerFileName(file.rank)) {
    return Wrong("the file of rank ", file.rank, " is ", Quoted(file.name), ", expected ",
                 OwnerFileName(file.rank));
  }
  if (file.bytes < 0 || file.bytes > kMaxArrayBytes) {
    return Wrong(file.name, " has ", file.bytes, " bytes, at most ", kMaxArrayBytes);
  }
  if (file.header_bytes > kMaxHeaderBytes) {
    return Wrong(file.name, " has a header of ", file.header_bytes, " bytes, at most ",
                 kMaxHeaderBytes);
  }
  if (file.header_bytes < 0 || file.header_bytes > file.bytes) {
    return Wrong(file.name, " has a header of ", file.header_bytes, " bytes, and ", file.bytes,
                 " in all");
  }
  int64_t rest = file.bytes - file.header_bytes;
  absl::flat_hash_set<absl::string_view> names;
  for (const CheckpointTensor& tensor : file.tensors) {
    absl::Status checked = CheckTensor(manifest, tensor);
    if (!checked.ok()) return errors::WithContext(checked, file.name);
    if (!names.insert(tensor.name).second) {
      return Wrong(file.name, " has two tensors ", Quoted(tensor.name));
    }
    if (tensor.bytes > rest) return Wrong(file.name, " has more tensors than bytes");
    rest -= tensor.bytes;
  }
  if (rest != 0) return Wrong(file.name, " has ", rest, " bytes that belong to no tensor");
  return absl::OkStatus();
}

// A part of an array, and where one of its tensors begins.
using Place = std::tuple<int, int, ArrayPart, int64_t>;

absl::Status CheckCover(const CheckpointManifest& manifest) {
  std::vector<std::pair<Place, int64_t>> stretches;
  for (const CheckpointFile& file : manifest.files) {
    for (const CheckpointTensor& tensor : file.tensors) {
      if (tensor.is_blob() || tensor.elements == 0) continue;
      stretches.push_back(
          {{tensor.parameter, tensor.array, tensor.part, tensor.offset_elements}, tensor.elements});
    }
  }
  std::sort(stretches.begin(), stretches.end());
  size_t next = 0;
  for (int p = 0; p < static_cast<int>(manifest.parameters.size()); ++p) {
    const CheckpointParameter& parameter = manifest.parameters[static_cast<size_t>(p)];
    for (int a = 0; a < static_cast<int>(parameter.arrays.size()); ++a) {
      const CheckpointArray& array = parameter.arrays[static_cast<size_t>(a)];
      for (const ArrayPart part : {ArrayPart::kValues, ArrayPart::kScales}) {
        if (part == ArrayPart::kScales && !IsCoded(array.format)) continue;
        int64_t end = 0;
        const auto is_here = [&] {
          const Place& place = stretches[next].first;
          return std::get<0>(place) == p && std::get<1>(place) == a && std::get<2>(place) == part;
        };
        const std::string what =
            absl::StrCat("parameter ", Quoted(parameter.name), ": ",
                         part == ArrayPart::kScales ? "scales of " : "", array.name);
        for (; next < stretches.size() && is_here(); ++next) {
          const int64_t begin = std::get<3>(stretches[next].first);
          if (begin < end) return Wrong(what, " has element ", begin, " in two tensors");
          if (begin > end) return Wrong(what, " has element ", end, " in no tensor");
          end = begin + stretches[next].second;
        }
        if (end != parameter.ElementsOf(a)) {
          return Wrong(what, " has element ", end, " in no tensor");
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(const CheckpointManifest& manifest) {
  absl::Status count = CheckCount("the number of parameters",
                                  static_cast<int64_t>(manifest.parameters.size()), kMaxParameters);
  if (!count.ok()) return count;
  absl::flat_hash_set<absl::string_view> names;
  int64_t bytes = 0;
  for (const CheckpointParameter& parameter : manifest.parameters) {
    absl::Status checked = CheckParameter(parameter, manifest.groups.size());
    if (!checked.ok()) return checked;
    if (!names.insert(parameter.name).second) {
      return Wrong("two parameters are ", Quoted(parameter.name));
    }
    for (int a = 0; a < static_cast<int>(parameter.arrays.size()); ++a) {
      bytes += parameter.ElementsOf(a);  // at least a byte each, and no sum of these overflows
      if (bytes > kMaxArrayBytes) return Wrong("the parameters have too many elements");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHead(const CheckpointManifest& manifest) {
  for (const auto& [what, text] : {std::make_pair("the job's name", &manifest.job),
                                   std::make_pair("the optimizer's name", &manifest.optimizer)}) {
    absl::Status checked = CheckText(what, *text);
    if (!checked.ok()) return checked;
  }
  absl::Status labels = CheckLabels(manifest.labels);
  if (!labels.ok()) return labels;
  if (manifest.step > INT64_MAX || manifest.generation > INT64_MAX) {
    return Wrong("step ", manifest.step, " or generation ", manifest.generation, " is too large");
  }
  if (manifest.world_size < 1 || manifest.world_size > kMaxWorldSize) {
    return Wrong("the world size is ", manifest.world_size, ", expected 1 to ", kMaxWorldSize);
  }
  for (const GroupRule& group : manifest.groups) {
    absl::Status checked = CheckText("the name of a rule", group.name);
    if (!checked.ok()) return checked;
    for (const auto& [name, value] : group.hyperparameters.values()) {
      checked = CheckText("the name of a hyperparameter", name);
      const auto* choice = absl::get_if<std::string>(&value);
      if (checked.ok() && choice != nullptr) checked = CheckText(name, *choice);
      if (!checked.ok()) return checked;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLabels(absl::Span<const std::string> labels) {
  if (labels.size() > kMaxLabels) {
    return Wrong("there are ", labels.size(), " labels, at most ", kMaxLabels);
  }
  for (const std::string& label : labels) {
    absl::Status checked = CheckText("a label", label);
    if (!checked.ok()) return checked;
    if (label.empty()) return Wrong("a label is empty");
  }
  return absl::OkStatus();
}

const std::vector<int64_t>& CheckpointParameter::ShapeOf(int array) const {
  const CheckpointArray& found = arrays[static_cast<size_t>(array)];
  return found.shape ? *found.shape : shape;
}

int64_t CheckpointParameter::ElementsOf(int array) const {
  return optshard::ElementsOf(ShapeOf(array));
}

int64_t CheckpointManifest::bytes() const {
  int64_t bytes = 0;
  for (const CheckpointFile& file : files) bytes += file.bytes;
  return bytes;
}

absl::Status CheckpointManifest::Validate() const {
  absl::Status checked = CheckHead(*this);
  if (checked.ok()) checked = CheckParameters(*this);
  if (!checked.ok()) return checked;
  if (files.size() != static_cast<size_t>(world_size)) {
    return Wrong("there are ", files.size(), " files of a world of ", world_size, " ranks");
  }
  int64_t all = 0;
  for (size_t rank = 0; rank < files.size(); ++rank) {
    if (files[rank].rank != static_cast<Rank>(rank)) {
      return Wrong("file ", rank, " is that of rank ", files[rank].rank);
    }
    checked = CheckFile(*this, files[rank]);
    if (!checked.ok()) return checked;
    if (files[rank].bytes > INT64_MAX - all) return Wrong("the files are too large");
    all += files[rank].bytes;
  }
  return CheckCover(*this);
}

std::string OwnerFileName(Rank rank) { return absl::StrFormat("owner-%05d.safetensors", rank); }

std::string TensorNameOf(const CheckpointParameter& parameter, int array, ArrayPart part,
                         int64_t offset_elements, int64_t elements) {
  // A bracket of its own would look like a stretch of another parameter.
  const std::string whole = absl::StrReplaceAll(EscapeName(parameter.name), {{"[", "%5B"}});
  std::string name = absl::StrCat(parameter.arrays[static_cast<size_t>(array)].name,
                                  part == ArrayPart::kScales ? ".scales/" : "/", whole);
  if (elements != parameter.ElementsOf(array)) {
    absl::StrAppend(&name, "[", offset_elements, ":", offset_elements + elements, "]");
  }
  return name;
}

std::vector<int64_t> TensorShapeOf(const CheckpointParameter& parameter, int array, ArrayPart part,
                                   int64_t elements) {
  const bool whole = elements == parameter.ElementsOf(array);
  if (whole && part == ArrayPart::kValues) return parameter.ShapeOf(array);
  return {PartElements(parameter.arrays[static_cast<size_t>(array)].format, part, elements)};
}

}  // namespace optshard
