#include "server/checkpoint/checkpoint_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/checkpoint/name_escape.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr char kLine[] = "%-24s %-13s %6s %11s  %-20s  %s\n";

std::string LineOf(const CheckpointEntry& entry) {
  if (entry.state == CheckpointState::kCommitted) {
    return absl::StrFormat(kLine, entry.name, NameOf(entry.state), absl::StrCat(entry.world_size),
                           SizeText(entry.bytes), TimeText(entry.saved_at),
                           absl::StrJoin(entry.labels, ", "));
  }
  return absl::StrFormat(kLine, entry.name, NameOf(entry.state), "", "", "",
                         entry.problem.message());
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string LineOf(const CheckpointParameter& parameter) {
  std::string text = absl::StrCat("  ", EscapeName(parameter.name), "  ", NameOf(parameter.dtype),
                                  " ", ShapeText(parameter.shape), "  ", parameter.steps,
                                  parameter.steps == 1 ? " step " : " steps");
  for (const CheckpointArray& array : parameter.arrays) {
    if (array.name == kParameterArray) continue;
    absl::StrAppend(&text, "  ", array.name, " ", NameOf(array.format),
                    array.shape ? absl::StrCat(" ", ShapeText(*array.shape)) : "");
  }
  for (const auto& [name, value] : parameter.scalars) {
    absl::StrAppend(&text, "  ", name, " ", value);
  }
  return text + "\n";
}

}  // namespace

absl::string_view NameOf(CheckpointState state) {
  switch (state) {
    case CheckpointState::kCommitted:
      return "committed";
    case CheckpointState::kUncommitted:
      return "not committed";
    case CheckpointState::kDamaged:
      return "damaged";
    case CheckpointState::kUnreadable:
      return "unreadable";
  }
  return "unknown";
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string ListText(absl::Span<const CheckpointEntry> entries) {
  std::string text = absl::StrFormat(kLine, "CHECKPOINT", "STATE", "RANKS", "SIZE", "SAVED", "");
  for (const CheckpointEntry& entry : entries) text += LineOf(entry);
  return text;
}

std::string ShowText(absl::string_view name, const CheckpointManifest& manifest) {
  std::string text =
      absl::StrCat(name, ": step ", manifest.step, " of job \"", manifest.job, "\", optimizer \"",
                   manifest.optimizer, "\", ", SizeText(manifest.bytes()), "\nsaved ",
                   TimeText(manifest.saved_at), " by ", manifest.world_size, " ranks, generation ",
                   manifest.generation, ", partition \"", NameOf(manifest.policy),
                   "\", format version ", kCheckpointFormatVersion, "\n");
  if (!manifest.labels.empty()) {
    absl::StrAppend(&text, "labels: ", absl::StrJoin(manifest.labels, ", "), "\n");
  }
  std::vector<std::string> blobs;
  for (const CheckpointFile& file : manifest.files) {
    for (const CheckpointTensor& tensor : file.tensors) {
      if (!tensor.is_blob()) continue;
      blobs.push_back(absl::StrCat("rank ", file.rank, " ", SizeText(tensor.bytes)));
    }
  }
  if (!blobs.empty()) {
    absl::StrAppend(&text, "kept by trainers: ", absl::StrJoin(blobs, ", "), "\n");
  }
  for (size_t group = 0; group < manifest.groups.size(); ++group) {
    absl::StrAppend(&text, "\ngroup ", group, ": ", manifest.groups[group].name, " ",
                    manifest.groups[group].hyperparameters.ToString(), "\n");
    for (const CheckpointParameter& parameter : manifest.parameters) {
      if (parameter.group == static_cast<int>(group)) text += LineOf(parameter);
    }
  }
  return text;
}

}  // namespace optshard
