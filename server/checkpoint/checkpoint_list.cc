#include "server/checkpoint/checkpoint_list.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "server/checkpoint/file_errors.h"
#include "server/checkpoint/manifest_json.h"

namespace optshard {
namespace {

constexpr char kPrefix[] = "step-";

void Take(CheckpointManifest&& manifest, CheckpointEntry& entry) {
  entry.state = CheckpointState::kCommitted;
  entry.bytes = manifest.bytes();
  entry.job = std::move(manifest.job);
  entry.optimizer = std::move(manifest.optimizer);
  entry.world_size = manifest.world_size;
  entry.saved_at = manifest.saved_at;
  entry.labels = std::move(manifest.labels);
}

CheckpointEntry Examine(Directory& root, const std::string& name, const CheckpointName& parsed) {
  CheckpointEntry entry;
  entry.name = name;
  entry.parsed = parsed;
  auto directory = root.OpenDirectory(name);
  auto manifest = directory.ok() ? ReadManifest(**directory) : directory.status();
  if (manifest.ok() && manifest->step != parsed.step) {
    manifest =
        absl::DataLossError(absl::StrCat(PathOf(root.path(), name), " has a checkpoint of ",
                                         "step ", manifest->step, ": its directory was renamed"));
  }
  if (manifest.ok()) {
    Take(*std::move(manifest), entry);
  } else if (!absl::IsNotFound(manifest.status())) {
    entry.state = CheckpointState::kDamaged;
    entry.damage = manifest.status();
  }
  return entry;
}

}  // namespace

std::string CheckpointNameText(const CheckpointName& name) {
  std::string text = absl::StrFormat("%s%012d", kPrefix, name.step);
  if (name.attempt > 0) absl::StrAppend(&text, ".", name.attempt);
  return text;
}

absl::optional<CheckpointName> ParseCheckpointName(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kPrefix)) return absl::nullopt;
  const size_t dot = rest.find('.');
  CheckpointName name;
  if (!absl::SimpleAtoi(rest.substr(0, dot), &name.step)) return absl::nullopt;
  if (dot != absl::string_view::npos && !absl::SimpleAtoi(rest.substr(dot + 1), &name.attempt)) {
    return absl::nullopt;
  }
  if (name.attempt < 0 || CheckpointNameText(name) != text) return absl::nullopt;
  return name;
}

absl::StatusOr<CheckpointManifest> ReadManifest(Directory& checkpoint) {
  auto file = checkpoint.OpenFile(kManifestName);
  if (!file.ok()) return file.status();
  const auto size = (*file)->Size();
  if (!size.ok()) return size.status();
  if (*size > kMaxManifestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat((*file)->path(), " has ", *size, " bytes, at most ", kMaxManifestBytes));
  }
  std::string text(static_cast<size_t>(*size), '\0');
  const auto read = (*file)->ReadAt(0, absl::MakeSpan(text));
  if (!read.ok()) return read.status();
  text.resize(*read);
  auto manifest = ParseManifest(text);
  if (!manifest.ok()) return errors::WithContext(manifest.status(), (*file)->path());
  return manifest;
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(Directory& root) {
  const auto names = root.List();
  if (!names.ok()) return names.status();
  std::vector<CheckpointEntry> entries;
  for (const DirectoryEntry& entry : *names) {
    const auto parsed = ParseCheckpointName(entry.name);
    if (!parsed || entry.kind != EntryKind::kDirectory) continue;
    entries.push_back(Examine(root, entry.name, *parsed));
  }
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    const auto rank = [](const CheckpointEntry& entry) {
      return std::make_tuple(entry.state == CheckpointState::kCommitted, entry.parsed.step,
                             entry.parsed.attempt);
    };
    return rank(a) > rank(b);
  });
  return entries;
}

std::vector<PruneDecision> DecidePrune(absl::Span<const CheckpointEntry> entries,
                                       const PrunePolicy& policy) {
  std::vector<PruneDecision> decisions;
  const CheckpointEntry* newest = nullptr;
  int committed = 0;
  for (const CheckpointEntry& entry : entries) {
    const auto decide = [&](bool remove, std::string reason) {
      decisions.push_back({entry.name, remove, std::move(reason)});
    };
    const StepNumber step = entry.parsed.step;
    if (entry.state == CheckpointState::kDamaged) {
      decide(false, "damaged: look at it first, then remove it yourself");
    } else if (entry.state == CheckpointState::kUncommitted) {
      const bool older =
          newest != nullptr && std::make_tuple(step, entry.parsed.attempt) <
                                   std::make_tuple(newest->parsed.step, newest->parsed.attempt);
      decide(older, older ? "not committed, and a newer one is" : "not committed, maybe not yet");
    } else if (newest == nullptr) {
      newest = &entry;
      ++committed;
      decide(false, "the newest");
    } else {
      ++committed;
      if (!entry.labels.empty()) {
        decide(false, absl::StrCat("label \"", entry.labels[0], "\""));
      } else if (policy.keep_last == 0) {
        decide(false, "all are kept");
      } else if (committed <= policy.keep_last) {
        decide(false, absl::StrCat("one of the newest ", policy.keep_last));
      } else if (policy.keep_every != 0 && step % policy.keep_every == 0) {
        decide(false, absl::StrCat("a multiple of ", policy.keep_every, " steps"));
      } else {
        decide(true, absl::StrCat("older than the newest ", policy.keep_last));
      }
    }
  }
  return decisions;
}

absl::Status RemoveCheckpoint(Directory& root, absl::string_view name) {
  if (!ParseCheckpointName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(root.path(), name), " is not the directory of a checkpoint, such as ",
                     CheckpointNameText({1000, 0})));
  }
  auto directory = root.OpenDirectory(name);
  if (!directory.ok()) return directory.status();
  absl::Status removed = (*directory)->Remove(kManifestName);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  // Only files of what is no checkpoint any more are removed, also after a power failure.
  removed = (*directory)->Sync();
  if (!removed.ok()) return removed;
  const auto files = (*directory)->List();
  if (!files.ok()) return files.status();
  for (const DirectoryEntry& file : *files) {
    removed = (*directory)->Remove(file.name);
    if (!removed.ok()) return removed;
  }
  removed = root.Remove(name);
  return removed.ok() ? root.Sync() : removed;
}

}  // namespace optshard
