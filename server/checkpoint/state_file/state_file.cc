#include "server/checkpoint/state_file/state_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/checkpoint/state_file/atomic_file.h"
#include "server/checkpoint/state_file/safetensors_state.h"
#include "server/checkpoint/state_file/torch_file.h"

namespace optshard {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// Of a safetensors file: its header's length, and the header's first byte.
constexpr size_t kHeaderAt = 8;

absl::StatusOr<bool> IsSafetensors(File& file) {
  std::array<char, kHeaderAt + 1> begin;
  const auto got = file.ReadAt(0, absl::MakeSpan(begin));
  if (!got.ok()) return got.status();
  return *got == begin.size() && begin[kHeaderAt] == '{';
}

// Copies elements of a storage, dimension by dimension.
void Gather(const FileTensor& tensor, const char* from, size_t dimension, char*& to) {
  const auto size = static_cast<size_t>(SizeOf(tensor.type));
  if (dimension == tensor.shape.size()) {
    std::memcpy(to, from, size);
    to += size;
    return;
  }
  for (int64_t i = 0; i < tensor.shape[dimension]; ++i) {
    Gather(tensor, from, dimension + 1, to);
    from += tensor.strides[dimension] * static_cast<int64_t>(size);
  }
}

}  // namespace

absl::StatusOr<StateFileFormat> FormatOfName(absl::string_view name) {
  if (absl::EndsWith(name, ".safetensors")) return StateFileFormat::kSafetensors;
  if (absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".pth")) return StateFileFormat::kTorch;
  return absl::InvalidArgumentError(
      absl::StrCat("the name of the file \"", name,
                   "\" does not say its format: end it in .pt or .safetensors"));
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Open(std::unique_ptr<File> file) {
  const auto safetensors = IsSafetensors(*file);
  if (!safetensors.ok()) return safetensors.status();
  absl::StatusOr<FileDocument> document;
  if (*safetensors) {
    const auto header = ReadSafetensorsHeader(*file);
    if (!header.ok()) return header.status();
    document = FromSafetensors(*header);
    if (!document.ok()) return errors::WithContext(document.status(), file->path());
  } else {
    document = ReadTorchFile(*file);
    if (!document.ok()) return document.status();
  }
  return std::unique_ptr<StateFile>(new StateFile(std::move(file), *std::move(document)));
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Open(FileSystem& system,
                                                           absl::string_view path) {
  const SplitPath split = Split(path);
  const auto directory = system.OpenDirectory(split.directory);
  if (!directory.ok()) return directory.status();
  auto file = (*directory)->OpenFile(split.name);
  if (!file.ok()) return file.status();
  return Open(*std::move(file));
}

absl::Status StateFile::ReadStorage(const FileStorage& storage, absl::Span<char> to) const {
  auto sum = static_cast<uint32_t>(crc32(0, nullptr, 0));
  for (size_t at = 0; at < to.size();) {
    const absl::Span<char> piece = to.subspan(at, kPieceBytes);
    const auto got = file_->ReadAt(storage.offset_bytes + static_cast<int64_t>(at), piece);
    if (!got.ok()) return got.status();
    if (*got < piece.size()) {
      return absl::DataLossError(absl::StrCat(path(), " became shorter while it was read"));
    }
    if (storage.crc32) {
      sum = static_cast<uint32_t>(
          crc32_z(sum, reinterpret_cast<const Bytef*>(piece.data()), piece.size()));
    }
    at += piece.size();
  }
  if (storage.crc32 && sum != *storage.crc32) {
    return absl::DataLossError(absl::StrCat(path(), " is damaged: the checksum of \"", storage.name,
                                            "\", bytes ", storage.offset_bytes, " to ",
                                            storage.offset_bytes + storage.bytes, ", is wrong"));
  }
  return absl::OkStatus();
}

absl::Status StateFile::Read(const FileTensor& tensor, absl::Span<char> to) const {
  if (to.empty()) return absl::OkStatus();
  const FileStorage& storage = document_.storages[tensor.storage];
  const bool is_all = tensor.is_contiguous() && tensor.bytes() == storage.bytes;
  if (is_all) return ReadStorage(storage, to);
  std::vector<char> bytes(static_cast<size_t>(storage.bytes));
  absl::Status read = ReadStorage(storage, absl::MakeSpan(bytes));
  if (!read.ok()) return read;
  const char* const from = bytes.data() + tensor.offset_elements * SizeOf(tensor.type);
  if (tensor.is_contiguous()) {
    std::memcpy(to.data(), from, to.size());
  } else {
    char* next = to.data();
    Gather(tensor, from, 0, next);
  }
  return absl::OkStatus();
}

absl::Status WriteStateFile(FileSystem& system, absl::string_view path,
                            const FileDocument& document, const TensorBytes& source,
                            const FileProgress& progress) {
  const SplitPath split = Split(path);
  const auto format = FormatOfName(split.name);
  if (!format.ok()) return format.status();
  const auto directory = system.OpenDirectory(split.directory);
  if (!directory.ok()) return directory.status();
  return WriteFileAtomically(**directory, split.name, [&](File& file) {
    if (*format == StateFileFormat::kTorch) return WriteTorchFile(document, source, file, progress);
    auto state = ToSafetensors(document);
    if (!state.ok()) return errors::WithContext(state.status(), path);
    return WriteSafetensors(std::move(state->tensors), std::move(state->metadata), source, file,
                            progress);
  });
}

}  // namespace optshard
