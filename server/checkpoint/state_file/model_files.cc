#include "server/checkpoint/state_file/model_files.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/parameter_space.h"
#include "server/checkpoint/state_file/atomic_file.h"
#include "server/checkpoint/state_file/safetensors_state.h"

namespace optshard {
namespace {

constexpr char kOnlyName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";

int64_t BytesOf(const SafetensorsTensor& tensor) {
  return ElementsOf(tensor.shape) * SizeOf(tensor.type);
}

std::string IndexText(absl::Span<const SafetensorsTensor> tensors,
                      absl::Span<const ModelFile> files, int64_t bytes) {
  nlohmann::json index;
  index["metadata"]["total_size"] = bytes;
  index["weight_map"] = nlohmann::json::object();
  for (const ModelFile& file : files) {
    for (const size_t tensor : file.tensors) {
      index["weight_map"][tensors[tensor].name] = file.name;
    }
  }
  return index.dump(2) + "\n";
}

}  // namespace

std::vector<ModelFile> DivideModel(absl::Span<const SafetensorsTensor> tensors,
                                   int64_t shard_bytes) {
  std::vector<ModelFile> files(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = BytesOf(tensors[i]);
    if (!files.back().tensors.empty() && more > shard_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().tensors.push_back(i);
    bytes += more;
  }
  for (size_t f = 0; f < files.size(); ++f) {
    files[f].name = files.size() == 1
                        ? kOnlyName
                        : absl::StrFormat("model-%05d-of-%05d.safetensors", f + 1, files.size());
  }
  return files;
}

absl::Status WriteModel(Directory& directory, absl::Span<const SafetensorsTensor> tensors,
                        const TensorBytes& source, int64_t shard_bytes,
                        const FileProgress& progress) {
  int64_t all = 0;
  for (const SafetensorsTensor& tensor : tensors) all += BytesOf(tensor);
  int64_t done = 0;
  const std::vector<ModelFile> files = DivideModel(tensors, shard_bytes);
  for (const ModelFile& file : files) {
    std::vector<SafetensorsTensor> here;
    int64_t bytes = 0;
    for (const size_t tensor : file.tensors) {
      here.push_back(tensors[tensor]);
      bytes += BytesOf(tensors[tensor]);
    }
    const auto source_here = [&](size_t tensor, int64_t offset_bytes, int64_t count) {
      return source(file.tensors[tensor], offset_bytes, count);
    };
    const auto progress_here = [&](int64_t done_here, int64_t) {
      if (progress) progress(done + done_here, all);
    };
    absl::Status written = WriteFileAtomically(directory, file.name, [&](File& to) {
      return WriteSafetensors(here, {{"format", "pt"}}, source_here, to, progress_here);
    });
    if (!written.ok()) return written;
    done += bytes;
  }
  if (files.size() == 1) return absl::OkStatus();
  const std::string index = IndexText(tensors, files, all);
  return WriteFileAtomically(directory, kIndexName,
                             [&](File& to) { return to.WriteAt(0, {index}); });
}

}  // namespace optshard
