#include "server/checkpoint/part_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/file_errors.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<File>> OpenPart(Directory& checkpoint,
                                               const CheckpointFile& described) {
  auto file = checkpoint.OpenFile(described.name);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(
        absl::StrCat(PathOf(checkpoint.path(), described.name), " is missing"));
  }
  if (!file.ok()) return file.status();
  const auto size = (*file)->Size();
  if (!size.ok()) return size.status();
  if (*size == described.bytes) return *std::move(file);
  return absl::DataLossError(absl::StrCat((*file)->path(), " is damaged: it has ", *size,
                                          " bytes, the manifest says ", described.bytes));
}

}  // namespace optshard
