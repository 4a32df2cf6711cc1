#include "server/checkpoint/model_layout.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/parameter_space.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/name_escape.h"

namespace optshard {
namespace {

constexpr char kOnlyName[] = "model.safetensors";
constexpr size_t kMostFiles = 99'999;  // that five digits can count

int64_t BytesOf(const SafetensorsTensor& tensor) {
  return ElementsOf(tensor.shape) * SizeOf(tensor.type);
}

// Which tensors each file has.
std::vector<std::vector<size_t>> Divide(absl::Span<const SafetensorsTensor> tensors,
                                        int64_t shard_bytes) {
  std::vector<std::vector<size_t>> files(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = BytesOf(tensors[i]);
    if (!files.back().empty() && more > shard_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += more;
  }
  return files;
}

// The file of some of the tensors; sets where those lie.
absl::StatusOr<ModelFile> LayOutFile(absl::Span<const SafetensorsTensor> tensors,
                                     const std::vector<size_t>& which, size_t file,
                                     std::vector<ModelLayout::Place>& places) {
  std::vector<SafetensorsTensor> here;
  absl::flat_hash_map<absl::string_view, size_t> index_of;
  for (const size_t tensor : which) {
    here.push_back(tensors[tensor]);
    index_of.emplace(tensors[tensor].name, tensor);
  }
  auto layout = LayOutSafetensors(std::move(here), {{"format", "pt"}});
  if (!layout.ok()) return layout.status();
  ModelFile made;
  made.layout = *std::move(layout);
  const SafetensorsHeader& header = made.layout.header;
  for (const SafetensorsTensor& tensor : header.tensors) {
    const size_t index = index_of.at(tensor.name);
    places[index] = {file, header.data_begin_bytes + tensor.offset_bytes, tensor.bytes,
                     SizeOf(tensor.type)};
    made.tensors.push_back(index);
  }
  return made;
}

std::string IndexText(absl::Span<const SafetensorsTensor> tensors, const ModelLayout& layout) {
  nlohmann::json index;
  index["metadata"]["total_size"] = layout.tensor_bytes;
  index["weight_map"] = nlohmann::json::object();
  for (size_t i = 0; i < tensors.size(); ++i) {
    index["weight_map"][tensors[i].name] = layout.files[layout.places[i].file].name;
  }
  return index.dump(2) + "\n";
}

}  // namespace

int64_t ModelLayout::file_bytes() const {
  auto bytes = static_cast<int64_t>(index.size());
  for (const ModelFile& file : files) bytes += file.layout.header.file_bytes();
  return bytes;
}

uint64_t ModelLayout::checksum() const {
  std::string all = index;
  for (const ModelFile& file : files) absl::StrAppend(&all, file.name, file.layout.bytes);
  return ChecksumOf(all);
}

SafetensorsTensor ModelTensor(absl::string_view parameter, TensorType type,
                              std::vector<int64_t> shape) {
  SafetensorsTensor tensor;
  tensor.name = EscapeName(parameter);
  tensor.type = type;
  tensor.shape = std::move(shape);
  return tensor;
}

absl::StatusOr<ModelLayout> LayOutModel(absl::Span<const SafetensorsTensor> tensors,
                                        int64_t shard_bytes) {
  const std::vector<std::vector<size_t>> divided = Divide(tensors, shard_bytes);
  if (divided.size() > kMostFiles) {
    return absl::InvalidArgumentError(
        absl::StrFormat("with %d bytes in a file the model has %d files, at most %d", shard_bytes,
                        divided.size(), kMostFiles));
  }
  ModelLayout layout;
  layout.places.resize(tensors.size());
  for (size_t f = 0; f < divided.size(); ++f) {
    const std::string name = divided.size() == 1 ? kOnlyName
                                                 : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                                   f + 1, divided.size());
    auto file = LayOutFile(tensors, divided[f], f, layout.places);
    if (!file.ok()) return errors::WithContext(file.status(), name);
    file->name = name;
    layout.tensor_bytes += file->layout.header.data_bytes();
    layout.files.push_back(*std::move(file));
  }
  if (layout.files.size() > 1) layout.index = IndexText(tensors, layout);
  return layout;
}

}  // namespace optshard
