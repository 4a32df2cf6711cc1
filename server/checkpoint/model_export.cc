#include "server/checkpoint/model_export.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/fatal.h"
#include "common/request_id.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/file_errors.h"

namespace optshard {
namespace {

constexpr char kUnfinished[] = ".unfinished";
constexpr size_t kIdDigits = 32;

absl::Status CheckRoom(Directory& parent, const ModelLayout& layout) {
  const auto room = parent.FreeBytes();
  if (!room.ok()) return room.status();
  const int64_t needed = layout.file_bytes();
  if (needed <= *room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(parent.path(), " has ", *room,
                                                   " bytes of free space, and the model takes ",
                                                   needed, ": free some"));
}

// Before any owner opens it, it has all its bytes: a network file system's clients that each
// believe that the file ends with what they write would fill up each other's pages with zeros.
absl::Status CreateModelFile(Directory& directory, const ModelFile& file) {
  auto made = directory.CreateFile(file.name);
  if (!made.ok()) return made.status();
  const SafetensorsHeader& header = file.layout.header;
  absl::Status written = (*made)->WriteAt(0, {file.layout.bytes});
  if (written.ok() && header.data_bytes() > 0) {
    written = (*made)->WriteAt(header.file_bytes() - 1, {absl::string_view("\0", 1)});
  }
  return written.ok() ? (*made)->Sync() : written;
}

absl::Status WriteIndex(Directory& directory, const std::string& index) {
  if (index.empty()) return absl::OkStatus();
  auto file = directory.CreateFile(kModelIndexName);
  if (!file.ok()) return file.status();
  absl::Status written = (*file)->WriteAt(0, {index});
  return written.ok() ? (*file)->Sync() : written;
}

absl::Status CheckSlice(const ModelLayout& layout, const OwnerSlice& slice) {
  const bool is_known =
      slice.parameter >= 0 && static_cast<size_t>(slice.parameter) < layout.places.size();
  if (!is_known) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", slice.parameter, " is to be exported, of ", layout.places.size()));
  }
  const ModelLayout::Place& place = layout.places[static_cast<size_t>(slice.parameter)];
  const int64_t all = place.bytes / place.element_bytes;
  if (slice.offset_elements >= 0 && slice.elements >= 0 && slice.offset_elements <= all &&
      slice.elements <= all - slice.offset_elements) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(slice.elements, " elements from ",
                                                 slice.offset_elements, " on of parameter ",
                                                 slice.parameter, " are to be exported, of ", all));
}

// Writes one file after the other. Thread-compatible.
class ShareWriter {
 public:
  ShareWriter(Directory& directory, const ModelLayout& layout, const OwnerWriteOptions& options)
      : directory_(directory), layout_(layout), options_(options) {}

  absl::StatusOr<int64_t> Write(std::vector<const OwnerSlice*> slices) {
    // In the order in which they lie in the files.
    std::sort(slices.begin(), slices.end(), [this](const OwnerSlice* a, const OwnerSlice* b) {
      return std::make_pair(PlaceOf(*a).file, BeginOf(*a)) <
             std::make_pair(PlaceOf(*b).file, BeginOf(*b));
    });
    for (const OwnerSlice* slice : slices) all_bytes_ += BytesOf(*slice);
    for (const OwnerSlice* slice : slices) {
      absl::Status written = WriteSlice(*slice);
      if (!written.ok()) return written;
    }
    absl::Status synced = SyncFile();
    if (!synced.ok()) return synced;
    return done_bytes_;
  }

 private:
  const ModelLayout::Place& PlaceOf(const OwnerSlice& slice) const {
    return layout_.places[static_cast<size_t>(slice.parameter)];
  }
  int64_t BeginOf(const OwnerSlice& slice) const {
    return PlaceOf(slice).offset_bytes + slice.offset_elements * PlaceOf(slice).element_bytes;
  }
  int64_t BytesOf(const OwnerSlice& slice) const {
    return slice.elements * PlaceOf(slice).element_bytes;
  }

  absl::Status SyncFile() { return file_ == nullptr ? absl::OkStatus() : file_->Sync(); }

  absl::Status Open(size_t index) {
    if (file_ != nullptr && index == index_) return absl::OkStatus();
    absl::Status synced = SyncFile();
    if (!synced.ok()) return synced;
    file_.reset();
    auto file = directory_.OpenFileToWrite(layout_.files[index].name);
    if (absl::IsNotFound(file.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat(file.status().message(),
                       "; all ranks and the coordinator must see the same file system under this "
                       "path"));
    }
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    index_ = index;
    return absl::OkStatus();
  }

  absl::Status WriteSlice(const OwnerSlice& slice) {
    const int64_t bytes = BytesOf(slice);
    if (bytes == 0) return absl::OkStatus();
    absl::Status status = Open(PlaceOf(slice).file);
    for (int64_t offset = 0; offset < bytes && status.ok(); offset += kChecksumBlockBytes) {
      if (options_.cancellation != nullptr) status = options_.cancellation->reason();
      if (!status.ok()) return status;
      const int64_t count = std::min(kChecksumBlockBytes, bytes - offset);
      const auto piece = slice.values(offset, count);
      if (!piece.ok()) {
        return errors::WithContext(piece.status(), absl::StrCat("parameter ", slice.parameter));
      }
      if (static_cast<int64_t>(piece->size()) != count) {
        Fatal("a source gave %d bytes of parameter %d, expected %d", piece->size(), slice.parameter,
              count);
      }
      status = file_->WriteAt(BeginOf(slice) + offset, {*piece});
      done_bytes_ += count;
      if (status.ok() && options_.progress) options_.progress(done_bytes_, all_bytes_);
    }
    return status;
  }

  Directory& directory_;
  const ModelLayout& layout_;
  const OwnerWriteOptions& options_;
  std::unique_ptr<File> file_;
  size_t index_ = 0;  // of the file
  int64_t done_bytes_ = 0;
  int64_t all_bytes_ = 0;
};

}  // namespace

std::vector<SafetensorsTensor> ModelTensorsOf(absl::Span<const CheckpointParameter> parameters) {
  std::vector<SafetensorsTensor> tensors;
  for (const CheckpointParameter& parameter : parameters) {
    tensors.push_back(ModelTensor(parameter.name,
                                  TypeOf(ArrayFormatOf(parameter.dtype), ArrayPart::kValues),
                                  parameter.shape));
  }
  return tensors;
}

std::vector<OwnerSlice> ModelSlicesOf(absl::Span<const CheckpointParameter> parameters,
                                      std::vector<OwnerSlice> slices) {
  slices.erase(std::remove_if(slices.begin(), slices.end(),
                              [&](const OwnerSlice& slice) {
                                const CheckpointParameter& parameter =
                                    parameters[static_cast<size_t>(slice.parameter)];
                                return parameter.arrays[static_cast<size_t>(slice.array)].name !=
                                       kParameterArray;
                              }),
               slices.end());
  return slices;
}

bool IsUnfinishedModelName(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, kUnfinished) || name.size() < kIdDigits + 2) return false;
  const absl::string_view id = name.substr(name.size() - kIdDigits);
  return name[name.size() - kIdDigits - 1] == '.' &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

absl::Status CheckModelName(Directory& parent, absl::string_view name) {
  const auto directory = parent.OpenDirectory(name);
  if (absl::IsNotFound(directory.status())) return absl::OkStatus();
  if (!directory.ok()) return directory.status();
  const auto entries = (*directory)->List();
  if (!entries.ok()) return entries.status();
  if (entries->empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat((*directory)->path(), " is there and has ",
                                               entries->front().name,
                                               ": name a new directory, or an empty one"));
}

absl::StatusOr<UnfinishedModel> CreateModel(Directory& parent, absl::string_view name,
                                            const ModelLayout& layout) {
  absl::Status status = CheckRoom(parent, layout);
  if (!status.ok()) return status;
  UnfinishedModel model;
  model.name = absl::StrCat(name, ".", NewRequestId(), kUnfinished);
  status = parent.CreateDirectory(model.name);
  auto directory = status.ok() ? parent.OpenDirectory(model.name) : status;
  status = directory.status();
  for (size_t f = 0; f < layout.files.size() && status.ok(); ++f) {
    status = CreateModelFile(**directory, layout.files[f]);
  }
  if (!status.ok()) {
    RemoveUnfinishedModel(parent, model.name).IgnoreError();
    return status;
  }
  model.directory = *std::move(directory);
  return model;
}

absl::StatusOr<int64_t> WriteModelShare(Directory& unfinished, const ModelLayout& layout,
                                        absl::Span<const OwnerSlice> slices,
                                        const OwnerWriteOptions& options) {
  std::vector<const OwnerSlice*> written;
  for (const OwnerSlice& slice : slices) {
    absl::Status checked = CheckSlice(layout, slice);
    if (!checked.ok()) return checked;
    written.push_back(&slice);
  }
  return ShareWriter(unfinished, layout, options).Write(std::move(written));
}

absl::Status CommitModel(Directory& parent, const UnfinishedModel& model, absl::string_view name,
                         const ModelLayout& layout) {
  absl::Status status = WriteIndex(*model.directory, layout.index);
  if (status.ok()) status = model.directory->Sync();
  // What a rename that replaces an empty directory would say of another one is no help.
  if (status.ok()) status = CheckModelName(parent, name);
  if (status.ok()) status = parent.Rename(model.name, name);
  if (!status.ok()) return status;
  return errors::WithContext(parent.Sync(),
                             "the model is complete, but a power failure may undo that");
}

absl::Status RemoveUnfinishedModel(Directory& parent, absl::string_view unfinished) {
  const auto directory = parent.OpenDirectory(unfinished);
  if (absl::IsNotFound(directory.status())) return absl::OkStatus();
  if (!directory.ok()) return directory.status();
  const auto files = (*directory)->List();
  if (!files.ok()) return files.status();
  for (const DirectoryEntry& file : *files) {
    absl::Status removed = (*directory)->Remove(file.name);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  absl::Status removed = parent.Remove(unfinished);
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

}  // namespace optshard
