#include "server/checkpoint/owner_writer.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/blob_size.h"
#include "common/errors.h"
#include "common/fatal.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {
namespace {

// Smaller pieces are collected, so that a thousand small tensors are not a thousand writes.
constexpr int64_t kWorthAWrite = 64 << 10;

struct PlannedTensor {
  CheckpointTensor tensor;
  SafetensorsTensor layout;
  const TensorSource* source = nullptr;
};

// Writes one piece after the other.
class Appender {
 public:
  explicit Appender(File& file) : file_(file) { collected_.reserve(kChecksumBlockBytes); }

  absl::Status Append(absl::string_view piece) {
    const auto bytes = static_cast<int64_t>(piece.size());
    if (bytes >= kWorthAWrite) return Write(piece);
    if (collected_.size() + piece.size() > static_cast<size_t>(kChecksumBlockBytes)) {
      absl::Status written = Flush();
      if (!written.ok()) return written;
    }
    collected_.append(piece.data(), piece.size());
    return absl::OkStatus();
  }

  absl::Status Flush() { return collected_.empty() ? absl::OkStatus() : Write({}); }

  int64_t end_bytes() const { return offset_ + static_cast<int64_t>(collected_.size()); }

 private:
  // What was collected, and the piece.
  absl::Status Write(absl::string_view piece) {
    absl::Status written = file_.WriteAt(offset_, {collected_, piece});
    offset_ = end_bytes() + static_cast<int64_t>(piece.size());
    collected_.clear();
    return written;
  }

  File& file_;
  int64_t offset_ = 0;
  std::string collected_;
};

absl::Status CheckSlice(absl::Span<const CheckpointParameter> parameters, const OwnerSlice& slice) {
  if (slice.parameter < 0 || static_cast<size_t>(slice.parameter) >= parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", slice.parameter, " is to be saved, of ", parameters.size()));
  }
  const CheckpointParameter& parameter = parameters[static_cast<size_t>(slice.parameter)];
  if (slice.array < 0 || static_cast<size_t>(slice.array) >= parameter.arrays.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("array ", slice.array, " of parameter \"", EscapeName(parameter.name),
                     "\" is to be saved, of ", parameter.arrays.size()));
  }
  const int64_t all = parameter.ElementsOf(slice.array);
  const int64_t grid = CutGrid(parameter.arrays[static_cast<size_t>(slice.array)].format);
  const bool within = slice.offset_elements >= 0 && slice.elements >= 0 &&
                      slice.offset_elements <= all && slice.elements <= all - slice.offset_elements;
  const int64_t end = within ? slice.offset_elements + slice.elements : 0;
  if (!within || slice.offset_elements % grid != 0 || (end % grid != 0 && end != all)) {
    return absl::InvalidArgumentError(
        absl::StrCat(slice.elements, " elements from ", slice.offset_elements, " on of ",
                     parameter.arrays[static_cast<size_t>(slice.array)].name, " of parameter \"",
                     EscapeName(parameter.name), "\" are to be saved, of ", all,
                     ", which is cut at multiples of ", grid));
  }
  return absl::OkStatus();
}

PlannedTensor PlanTensor(const CheckpointParameter& parameter, const OwnerSlice& slice,
                         ArrayPart part) {
  PlannedTensor planned;
  const ArrayFormat format = parameter.arrays[static_cast<size_t>(slice.array)].format;
  planned.tensor.name =
      TensorNameOf(parameter, slice.array, part, slice.offset_elements, slice.elements);
  planned.tensor.parameter = slice.parameter;
  planned.tensor.array = slice.array;
  planned.tensor.part = part;
  planned.tensor.offset_elements = slice.offset_elements;
  planned.tensor.elements = slice.elements;
  planned.layout.name = planned.tensor.name;
  planned.layout.type = TypeOf(format, part);
  planned.layout.shape = TensorShapeOf(parameter, slice.array, part, slice.elements);
  planned.source = part == ArrayPart::kValues ? &slice.values : &slice.scales;
  if (!*planned.source) Fatal("nothing gives the bytes of %s", planned.tensor.name);
  return planned;
}

class OwnerFileWriter {
 public:
  OwnerFileWriter(Directory& directory, const OwnerState& state, const OwnerWriteOptions& options)
      : directory_(directory), state_(state), options_(options) {}

  absl::Status Plan(absl::Span<const CheckpointParameter> parameters) {
    if (state_.blob) {
      absl::Status size = CheckBlobSize(state_.rank, *state_.blob);
      if (!size.ok()) return size;
      AddBlob(*state_.blob);
    }
    for (const OwnerSlice& slice : state_.slices) {
      absl::Status checked = CheckSlice(parameters, slice);
      if (!checked.ok()) return checked;
      const CheckpointParameter& parameter = parameters[static_cast<size_t>(slice.parameter)];
      const bool coded = IsCoded(parameter.arrays[static_cast<size_t>(slice.array)].format);
      Add(PlanTensor(parameter, slice, ArrayPart::kValues));
      if (coded) Add(PlanTensor(parameter, slice, ArrayPart::kScales));
    }
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, planned] : planned_) tensors.push_back(planned.layout);
    auto layout = LayOutSafetensors(std::move(tensors), {{"format", "optshard"}});
    if (!layout.ok()) return layout.status();
    layout_ = *std::move(layout);
    if (layout_.header.tensors.size() != planned_count_) {
      return absl::InvalidArgumentError("the same elements are to be saved twice");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<CheckpointFile> Write() {
    absl::Status room = CheckRoom();
    if (!room.ok()) return room;
    const std::string name = OwnerFileName(state_.rank);
    auto file = directory_.CreateFile(name);
    if (!file.ok()) return file.status();
    absl::Status written = WriteContent(**file);
    if (written.ok()) written = (*file)->Sync();
    if (written.ok()) written = directory_.Sync();
    if (!written.ok()) {
      // No manifest names it; the space is worth having again.
      directory_.Remove(name).IgnoreError();
      return written;
    }
    file_.rank = state_.rank;
    file_.name = name;
    file_.bytes = layout_.header.file_bytes();
    file_.header_bytes = layout_.header.data_begin_bytes;
    file_.header_checksum = ChecksumOf(layout_.bytes);
    return std::move(file_);
  }

 private:
  void AddBlob(absl::string_view blob) {
    blob_source_ = InMemory(blob.data());
    PlannedTensor planned;
    planned.tensor.name = kBlobTensor;
    planned.layout.name = kBlobTensor;
    planned.layout.type = TensorType::kU8;
    planned.layout.shape = {static_cast<int64_t>(blob.size())};
    planned.source = &blob_source_;
    Add(std::move(planned));
  }

  void Add(PlannedTensor planned) {
    ++planned_count_;
    std::string name = planned.tensor.name;
    planned_.insert_or_assign(std::move(name), std::move(planned));
  }

  absl::Status CheckRoom() {
    const auto room = directory_.FreeBytes();
    if (!room.ok()) return room.status();
    const int64_t needed = layout_.header.file_bytes();
    if (needed <= *room) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        directory_.path(), " has ", *room, " bytes of free space, and the checkpoint's part of ",
        "rank ", state_.rank, " takes ", needed, ": free some, or prune older checkpoints"));
  }

  absl::Status WriteContent(File& file) {
    Appender appender(file);
    absl::Status written = appender.Append(layout_.bytes);
    for (const SafetensorsTensor& tensor : layout_.header.tensors) {
      if (!written.ok()) return written;
      PlannedTensor& planned = planned_[tensor.name];
      planned.tensor.bytes = tensor.bytes;
      written = WriteTensor(planned, appender);
      file_.tensors.push_back(std::move(planned.tensor));
    }
    return written.ok() ? appender.Flush() : written;
  }

  absl::Status WriteTensor(PlannedTensor& planned, Appender& appender) {
    const int64_t bytes = planned.tensor.bytes;
    for (int64_t offset = 0; offset < bytes; offset += kChecksumBlockBytes) {
      if (options_.cancellation != nullptr) {
        absl::Status cancelled = options_.cancellation->reason();
        if (!cancelled.ok()) return cancelled;
      }
      const int64_t count = std::min(kChecksumBlockBytes, bytes - offset);
      const auto piece = (*planned.source)(offset, count);
      if (!piece.ok()) return errors::WithContext(piece.status(), planned.tensor.name);
      if (static_cast<int64_t>(piece->size()) != count) {
        Fatal("a source gave %d bytes of %s, expected %d", piece->size(), planned.tensor.name,
              count);
      }
      planned.tensor.checksums.push_back(ChecksumOf(*piece));
      absl::Status written = appender.Append(*piece);
      if (!written.ok()) return written;
      if (options_.progress) {
        options_.progress(appender.end_bytes() - layout_.header.data_begin_bytes,
                          layout_.header.data_bytes());
      }
    }
    return absl::OkStatus();
  }

  Directory& directory_;
  const OwnerState& state_;
  const OwnerWriteOptions& options_;
  TensorSource blob_source_;
  std::map<std::string, PlannedTensor> planned_;
  size_t planned_count_ = 0;
  SafetensorsLayout layout_;
  CheckpointFile file_;
};

}  // namespace

TensorSource InMemory(const void* bytes) {
  return [begin = static_cast<const char*>(bytes)](int64_t offset, int64_t count) {
    return absl::string_view(begin + offset, static_cast<size_t>(count));
  };
}

absl::StatusOr<OwnerPart> WriteOwnerFile(Directory& directory,
                                         absl::Span<const CheckpointParameter> parameters,
                                         const OwnerState& state,
                                         const OwnerWriteOptions& options) {
  OwnerFileWriter writer(directory, state, options);
  absl::Status planned = writer.Plan(parameters);
  if (!planned.ok()) return planned;
  auto file = writer.Write();
  if (!file.ok()) return file.status();
  OwnerPart part;
  part.file = *std::move(file);
  part.counts = state.counts;
  return part;
}

}  // namespace optshard
