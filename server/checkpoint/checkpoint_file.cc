#include "server/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/part_file.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {
namespace {

// Parsed from the same bytes whose checksum was right.
absl::StatusOr<SafetensorsHeader> ReadHeader(File& file, const CheckpointFile& described) {
  std::string bytes(static_cast<size_t>(described.header_bytes), '\0');
  const auto read = file.ReadAt(0, absl::MakeSpan(bytes));
  if (!read.ok()) return read.status();
  if (ChecksumOf(bytes) != described.header_checksum) {
    return absl::DataLossError(absl::StrCat(file.path(), " is damaged: its header, bytes 0 to ",
                                            bytes.size(), ", has checksum ",
                                            ChecksumText(ChecksumOf(bytes)), ", the manifest says ",
                                            ChecksumText(described.header_checksum)));
  }
  const auto json = SafetensorsHeaderJson(bytes);
  if (!json.ok()) return errors::WithContext(json.status(), file.path());
  auto header = ParseSafetensorsHeader(*json, described.bytes);
  return header.ok() ? std::move(header) : errors::WithContext(header.status(), file.path());
}

std::string TensorText(TensorType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(NameOf(type), " [", absl::StrJoin(shape, ", "), "]");
}

// What is wrong with a tensor that the header describes; "" where nothing is.
std::string DifferenceOf(const CheckpointManifest& manifest, const CheckpointTensor& tensor,
                         const SafetensorsTensor& found) {
  TensorType type = TensorType::kU8;
  std::vector<int64_t> shape = {tensor.bytes};
  if (!tensor.is_blob()) {
    const CheckpointParameter& of = manifest.parameters[static_cast<size_t>(tensor.parameter)];
    type = TypeOf(of.arrays[static_cast<size_t>(tensor.array)].format, tensor.part);
    shape = TensorShapeOf(of, tensor.array, tensor.part, tensor.elements);
  }
  if (found.type == type && found.shape == shape) return "";
  return absl::StrCat("is ", TensorText(found.type, found.shape), ", expected ",
                      TensorText(type, shape));
}

}  // namespace

int64_t TensorInFile::block_bytes(int64_t block) const {
  return std::min(kChecksumBlockBytes, tensor->bytes - block * kChecksumBlockBytes);
}

absl::Status TensorInFile::ReadBlock(File& file, int64_t block, absl::Span<char> to) const {
  const int64_t begin = offset_bytes + block * kChecksumBlockBytes;
  const auto read = file.ReadAt(begin, to);
  if (!read.ok()) return read.status();
  const uint64_t expected = tensor->checksums[static_cast<size_t>(block)];
  const uint64_t actual = ChecksumOf({to.data(), *read});
  if (*read == to.size() && actual == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      file.path(), " is damaged: tensor \"", tensor->name, "\", within bytes ", begin, " to ",
      begin + static_cast<int64_t>(to.size()), " of the file: ",
      *read < to.size() ? std::string("it ends before")
                        : absl::StrCat("their checksum is ", ChecksumText(actual),
                                       ", the manifest says ", ChecksumText(expected))));
}

absl::StatusOr<OpenedFile> OpenCheckpointFile(Directory& directory,
                                              const CheckpointManifest& manifest,
                                              const CheckpointFile& described) {
  OpenedFile opened;
  auto file = OpenPart(directory, described);
  if (!file.ok()) return file.status();
  opened.file = *std::move(file);
  const auto header = ReadHeader(*opened.file, described);
  if (!header.ok()) return header.status();

  absl::flat_hash_map<absl::string_view, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& tensor : header->tensors) by_name[tensor.name] = &tensor;
  for (const CheckpointTensor& tensor : described.tensors) {
    const auto found = by_name.find(tensor.name);
    const std::string wrong =
        found == by_name.end() ? "is not in it" : DifferenceOf(manifest, tensor, *found->second);
    if (!wrong.empty()) {
      return absl::DataLossError(absl::StrCat(opened.file->path(),
                                              " does not go with the manifest: tensor \"",
                                              tensor.name, "\" ", wrong));
    }
    opened.tensors.push_back(
        {&tensor, &described, header->data_begin_bytes + found->second->offset_bytes});
  }
  return opened;
}

}  // namespace optshard
