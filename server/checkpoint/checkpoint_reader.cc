#include "server/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fatal.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/part_file.h"

namespace optshard {
namespace {

// [begin, begin + to.size()) of a tensor, by way of the blocks that have it. The file is open only
// meanwhile: there may be more ranks than a process may have files.
absl::Status ReadRange(Directory& directory, const TensorInFile& tensor, int64_t begin,
                       absl::Span<char> to) {
  const auto file = OpenPart(directory, *tensor.part);
  if (!file.ok()) return file.status();
  const int64_t end = begin + static_cast<int64_t>(to.size());
  std::string partial;
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / kChecksumBlockBytes;
    const int64_t block_begin = block * kChecksumBlockBytes;
    const int64_t block_end = block_begin + tensor.block_bytes(block);
    char* const into = to.data() + (at - begin);
    if (at == block_begin && block_end <= end) {
      absl::Status read =
          tensor.ReadBlock(**file, block, {into, static_cast<size_t>(block_end - block_begin)});
      if (!read.ok()) return read;
    } else {
      partial.resize(static_cast<size_t>(block_end - block_begin));
      absl::Status read = tensor.ReadBlock(**file, block, absl::MakeSpan(partial));
      if (!read.ok()) return read;
      std::memcpy(into, partial.data() + (at - block_begin),
                  static_cast<size_t>(std::min(end, block_end) - at));
    }
    at = std::min(end, block_end);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    std::unique_ptr<Directory> directory) {
  auto manifest = ReadManifest(*directory);
  if (!manifest.ok()) return manifest.status();
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader());
  reader->manifest_ = *std::move(manifest);
  for (const CheckpointFile& described : reader->manifest_.files) {
    auto opened = OpenCheckpointFile(*directory, reader->manifest_, described);
    if (!opened.ok()) return opened.status();
    for (const TensorInFile& located : opened->tensors) {
      const CheckpointTensor& tensor = *located.tensor;
      if (tensor.is_blob()) {
        reader->blobs_[described.rank] = located;
      } else if (tensor.elements > 0) {
        reader->tensors_[{tensor.parameter, tensor.array, tensor.part, tensor.offset_elements}] =
            located;
      }
    }
  }
  reader->directory_ = std::move(directory);
  return reader;
}

absl::Status CheckpointReader::Read(int parameter, int array, ArrayPart part,
                                    int64_t offset_elements, int64_t elements,
                                    absl::Span<char> to) const {
  const auto count = static_cast<int>(manifest_.parameters.size());
  if (parameter < 0 || parameter >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no parameter ", parameter, ", of ", count));
  }
  const CheckpointParameter& found = manifest_.parameters[static_cast<size_t>(parameter)];
  const bool is_array = array >= 0 && static_cast<size_t>(array) < found.arrays.size();
  if (!is_array) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", EscapeName(found.name),
                                                   "\" has no array ", array, ", of ",
                                                   found.arrays.size()));
  }
  const ArrayFormat format = found.arrays[static_cast<size_t>(array)].format;
  const int64_t all = found.ElementsOf(array);
  const int64_t grid = CutGrid(format);
  const bool within = offset_elements >= 0 && elements >= 0 && offset_elements <= all &&
                      elements <= all - offset_elements;
  const int64_t end = within ? offset_elements + elements : 0;
  const bool on_grid = within && offset_elements % grid == 0 && (end % grid == 0 || end == all);
  if (!on_grid || (part == ArrayPart::kScales && !IsCoded(format))) {
    return absl::InvalidArgumentError(absl::StrCat(
        elements, " elements from ", offset_elements, " on are to be read of ",
        found.arrays[static_cast<size_t>(array)].name, " of parameter \"", EscapeName(found.name),
        "\", which has ", all, " in format ", NameOf(format), ", read at multiples of ", grid));
  }
  if (static_cast<int64_t>(to.size()) != PartBytes(format, part, elements)) {
    Fatal("%d bytes are to be read into %d", PartBytes(format, part, elements), to.size());
  }
  if (elements == 0) return absl::OkStatus();
  // The tensor that begins at or before the range; Validate has seen that the tensors cover all.
  auto at = std::prev(tensors_.upper_bound({parameter, array, part, offset_elements}));
  const int64_t first = PartBytes(format, part, offset_elements);
  for (; at != tensors_.end(); ++at) {
    const CheckpointTensor& tensor = *at->second.tensor;
    const bool same = tensor.parameter == parameter && tensor.array == array && tensor.part == part;
    if (!same || tensor.offset_elements >= end) break;
    const int64_t from = std::max(offset_elements, tensor.offset_elements);
    const int64_t until = std::min(end, tensor.offset_elements + tensor.elements);
    // Offsets are on the grid, where parts have whole elements; the end may be the array's.
    const int64_t begin = PartBytes(format, part, from);
    const int64_t bytes = PartBytes(format, part, until) - begin;
    absl::Status read =
        ReadRange(*directory_, at->second, begin - PartBytes(format, part, tensor.offset_elements),
                  to.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(bytes)));
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<std::string>> CheckpointReader::ReadBlob(Rank rank) const {
  const auto found = blobs_.find(rank);
  if (found == blobs_.end()) return absl::optional<std::string>();
  std::string blob(static_cast<size_t>(found->second.tensor->bytes), '\0');
  absl::Status read = ReadRange(*directory_, found->second, 0, absl::MakeSpan(blob));
  if (!read.ok()) return read;
  return absl::make_optional(std::move(blob));
}

}  // namespace optshard
