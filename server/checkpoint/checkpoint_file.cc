#include "server/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/part_file.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {
namespace {

absl::Status CheckHeader(File& file, const CheckpointFile& described) {
  std::string header(static_cast<size_t>(described.header_bytes), '\0');
  const auto read = file.ReadAt(0, absl::MakeSpan(header));
  if (!read.ok()) return read.status();
  if (ChecksumOf(header) == described.header_checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file.path(), " is damaged: its header, bytes 0 to ",
                                          header.size(), ", has checksum ",
                                          ChecksumText(ChecksumOf(header)), ", the manifest says ",
                                          ChecksumText(described.header_checksum)));
}

}  // namespace

int64_t TensorInFile::block_bytes(int64_t block) const {
  return std::min(kChecksumBlockBytes, tensor->bytes - block * kChecksumBlockBytes);
}

absl::Status TensorInFile::ReadBlock(int64_t block, absl::Span<char> to) const {
  const int64_t begin = offset_bytes + block * kChecksumBlockBytes;
  const auto read = file->ReadAt(begin, to);
  if (!read.ok()) return read.status();
  const uint64_t expected = tensor->checksums[static_cast<size_t>(block)];
  const uint64_t actual = ChecksumOf({to.data(), *read});
  if (*read == to.size() && actual == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      file->path(), " is damaged: tensor \"", tensor->name, "\", within bytes ", begin, " to ",
      begin + static_cast<int64_t>(to.size()), " of the file: ",
      *read < to.size() ? std::string("it ends before")
                        : absl::StrCat("their checksum is ", ChecksumText(actual),
                                       ", the manifest says ", ChecksumText(expected))));
}

absl::StatusOr<OpenedFile> OpenCheckpointFile(Directory& directory,
                                              const CheckpointFile& described) {
  OpenedFile opened;
  auto file = OpenPart(directory, described);
  if (!file.ok()) return file.status();
  opened.file = *std::move(file);
  absl::Status checked = CheckHeader(*opened.file, described);
  if (!checked.ok()) return checked;
  const auto header = ReadSafetensorsHeader(*opened.file);
  if (!header.ok()) return header.status();

  absl::flat_hash_map<absl::string_view, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& tensor : header->tensors) by_name[tensor.name] = &tensor;
  for (const CheckpointTensor& tensor : described.tensors) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end() || found->second->bytes != tensor.bytes) {
      return absl::DataLossError(absl::StrCat(
          opened.file->path(), " does not go with the manifest: tensor \"", tensor.name, "\" ",
          found == by_name.end()
              ? std::string("is not in it")
              : absl::StrCat("has ", found->second->bytes, " bytes, expected ", tensor.bytes)));
    }
    opened.tensors.push_back(
        {&tensor, opened.file.get(), header->data_begin_bytes + found->second->offset_bytes});
  }
  return opened;
}

}  // namespace optshard
