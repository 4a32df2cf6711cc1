#include "server/checkpoint/checkpoint_list.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/part_file.h"

namespace optshard {
namespace {

constexpr char kPrefix[] = "step-";

// More than any job tries, and so few that the next one is a number, too.
constexpr int kMaxAttempt = 1'000'000;

void Take(CheckpointManifest&& manifest, CheckpointEntry& entry) {
  entry.state = CheckpointState::kCommitted;
  entry.bytes = manifest.bytes();
  entry.job = std::move(manifest.job);
  entry.optimizer = std::move(manifest.optimizer);
  entry.world_size = manifest.world_size;
  entry.saved_at = manifest.saved_at;
  entry.labels = std::move(manifest.labels);
}

void Refuse(absl::Status problem, CheckpointEntry& entry) {
  const bool damaged = absl::IsDataLoss(problem) || absl::IsInvalidArgument(problem);
  entry.state = damaged ? CheckpointState::kDamaged : CheckpointState::kUnreadable;
  entry.problem = std::move(problem);
}

// That the parts are there in their sizes. One whose listed size is wrong is opened: network file
// systems may give old sizes of files that are not.
absl::Status CheckParts(Directory& checkpoint, const CheckpointManifest& manifest,
                        const std::vector<DirectoryEntry>& files) {
  absl::flat_hash_map<absl::string_view, int64_t> sizes;
  for (const DirectoryEntry& file : files) {
    if (file.kind == EntryKind::kFile) sizes[file.name] = file.bytes;
  }
  for (const CheckpointFile& part : manifest.files) {
    const auto found = sizes.find(part.name);
    if (found != sizes.end() && found->second == part.bytes) continue;
    absl::Status opened = OpenPart(checkpoint, part).status();
    if (!opened.ok()) return opened;
  }
  return absl::OkStatus();
}

// In the order in which a committer looks, for its reason (checkpoint_removal.h): the manifest,
// marks, parts.
void Examine(Directory& checkpoint, CheckpointEntry& entry) {
  auto manifest = ReadManifest(checkpoint);
  const auto files = checkpoint.List();
  if (!files.ok()) return Refuse(files.status(), entry);
  bool marked = false;
  for (const DirectoryEntry& file : *files) {
    entry.modified_at = std::max(entry.modified_at, file.modified_at);
    marked = marked || IsRemovalMark(file.name);
  }
  if (marked || absl::IsNotFound(manifest.status())) return;
  absl::Status whole = manifest.status();
  if (whole.ok()) whole = CheckStep(checkpoint, *manifest, entry.parsed.step);
  if (whole.ok()) whole = CheckParts(checkpoint, *manifest, *files);
  if (!whole.ok()) return Refuse(std::move(whole), entry);
  Take(*std::move(manifest), entry);
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
  const bool in_range = name.attempt >= 0 && name.attempt <= kMaxAttempt;
  if (!in_range || CheckpointNameText(name) != text) return absl::nullopt;
  return name;
}

absl::Status CheckStep(const Directory& checkpoint, const CheckpointManifest& manifest,
                       StepNumber named) {
  if (manifest.step == named) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(checkpoint.path(), " has a checkpoint of step ",
                                          manifest.step, ": its directory was renamed"));
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
    const auto directory = root.OpenDirectory(entry.name);
    if (absl::IsNotFound(directory.status())) continue;  // it has just been removed
    CheckpointEntry found;
    found.name = entry.name;
    found.parsed = *parsed;
    found.modified_at = entry.modified_at;
    if (directory.ok()) {
      Examine(**directory, found);
    } else {
      Refuse(directory.status(), found);
    }
    entries.push_back(std::move(found));
  }
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    const auto rank = [](const CheckpointEntry& entry) {
      const bool committed = entry.state == CheckpointState::kCommitted;
      return std::make_tuple(committed, committed ? entry.saved_at : absl::UnixEpoch(),
                             entry.parsed.step, entry.parsed.attempt);
    };
    return rank(a) > rank(b);
  });
  return entries;
}

std::vector<PruneDecision> DecidePrune(absl::Span<const CheckpointEntry> entries,
                                       const PrunePolicy& policy) {
  std::vector<PruneDecision> decisions;
  absl::Time last_saved = absl::InfinitePast();
  std::map<std::pair<absl::string_view, absl::string_view>, int> committed_of;
  for (const CheckpointEntry& entry : entries) {
    const auto decide = [&](bool remove, std::string reason) {
      decisions.push_back({entry.name, remove, std::move(reason)});
    };
    const StepNumber step = entry.parsed.step;
    if (entry.state == CheckpointState::kDamaged) {
      decide(false, "damaged: look at it first, then remove it yourself");
    } else if (entry.state == CheckpointState::kUnreadable) {
      decide(false, "cannot be read: list says why");
    } else if (entry.state == CheckpointState::kUncommitted) {
      const bool left = entry.modified_at + kTakenForDead < last_saved;
      decide(left, left ? "not committed, and left for an hour when another one was saved"
                        : "not committed, maybe not yet");
    } else {
      last_saved = std::max(last_saved, entry.saved_at);
      const int committed = ++committed_of[{entry.job, entry.optimizer}];
      if (committed == 1) {
        decide(false, "the newest");
      } else if (!entry.labels.empty()) {
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

}  // namespace optshard
