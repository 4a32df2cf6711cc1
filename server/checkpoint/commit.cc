#include "server/checkpoint/commit.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/request_id.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/file_errors.h"
#include "server/checkpoint/name_escape.h"

namespace optshard {
namespace {

constexpr int kAttempts = 1000;

// That the committing process sees what the owner has written.
absl::Status CheckPresent(Directory& checkpoint, const CheckpointFile& part) {
  const auto file = checkpoint.OpenFile(part.name);
  const auto size = file.ok() ? (*file)->Size() : file.status();
  if (size.ok() && *size == part.bytes) return absl::OkStatus();
  if (!size.ok() && !absl::IsNotFound(size.status())) return size.status();
  return absl::FailedPreconditionError(absl::StrCat(
      PathOf(checkpoint.path(), part.name),
      size.ok() ? absl::StrCat(" has ", *size, " bytes") : std::string(" is not there"),
      ", and rank ", part.rank, " has written ", part.bytes,
      " bytes: all ranks and the coordinator must see the same file system under this path"));
}

absl::Status CheckAllPresent(Directory& checkpoint, const CheckpointManifest& manifest) {
  for (const CheckpointFile& part : manifest.files) {
    absl::Status present = CheckPresent(checkpoint, part);
    if (!present.ok()) return present;
  }
  return absl::OkStatus();
}

// That nobody has begun to remove it (checkpoint_removal.h): first the marks, then the parts.
absl::Status CheckNotRemoved(Directory& checkpoint, const CheckpointManifest& manifest) {
  const auto files = checkpoint.List();
  if (!files.ok()) return files.status();
  const auto mark = std::find_if(files->begin(), files->end(), [](const DirectoryEntry& file) {
    return IsRemovalMark(file.name);
  });
  if (mark != files->end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("another process is removing it: ", PathOf(checkpoint.path(), mark->name)));
  }
  return CheckAllPresent(checkpoint, manifest);
}

// The own manifest has its name, and nobody can count on it any more.
absl::Status TakeBack(Directory& checkpoint, const absl::Status& why) {
  absl::Status removed = checkpoint.Remove(kManifestName);
  if (removed.ok()) removed = checkpoint.Sync();
  const bool gone = removed.ok() || absl::IsNotFound(removed);
  return errors::WithContext(
      why, absl::StrCat("the checkpoint ", checkpoint.path(), " was not committed, save again",
                        gone ? "" : absl::StrCat(" (", removed.message(), ")")));
}

// Whether the manifest has exactly this text.
bool HasText(Directory& checkpoint, absl::string_view text) {
  const auto file = checkpoint.OpenFile(kManifestName);
  if (!file.ok()) return false;
  std::string found(text.size() + 1, '\0');
  const auto bytes = (*file)->ReadAt(0, absl::MakeSpan(found));
  return bytes.ok() && absl::string_view(found.data(), *bytes) == text;
}

absl::Status WriteSynced(Directory& checkpoint, const std::string& name, absl::string_view text) {
  auto file = checkpoint.CreateFile(name);
  if (!file.ok()) return file.status();
  absl::Status written = (*file)->WriteAt(0, {text});
  return written.ok() ? (*file)->Sync() : written;
}

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

std::string ValueText(const ScalarValues& values, const std::string& slot) {
  const auto found = values.find(slot);
  return found == values.end() ? "none" : absl::StrFormat("%.17g", found->second);
}

// The first slot in which they differ, by their bits, with both values; "" where they do not.
std::string DifferenceOf(const ScalarValues& a, const ScalarValues& b) {
  ScalarValues all = a;
  all.insert(b.begin(), b.end());
  for (const auto& each : all) {
    const auto in_a = a.find(each.first);
    const auto in_b = b.find(each.first);
    const bool same =
        in_a != a.end() && in_b != b.end() && BitsOf(in_a->second) == BitsOf(in_b->second);
    if (!same) {
      return absl::StrCat("its slot ", EscapeName(each.first), " is ", ValueText(a, each.first),
                          " there and ", ValueText(b, each.first), " here");
    }
  }
  return "";
}

// Sets what an owner says of the parameters, or checks it against what another one has said.
absl::Status TakeCounts(const OwnerPart& part, std::vector<Rank>& counted_by,
                        CheckpointManifest& manifest) {
  const Rank rank = part.file.rank;
  for (const ParameterCount& count : part.counts) {
    if (count.parameter < 0 || static_cast<size_t>(count.parameter) >= counted_by.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has counted parameter ",
                                                     count.parameter, ", of ", counted_by.size()));
    }
    const auto index = static_cast<size_t>(count.parameter);
    CheckpointParameter& parameter = manifest.parameters[index];
    Rank& by = counted_by[index];
    const std::string scalars = DifferenceOf(parameter.scalars, count.scalars);
    if (by < 0) {
      by = rank;
      parameter.steps = count.steps;
      parameter.scalars = count.scalars;
    } else if (parameter.steps != count.steps || !scalars.empty()) {
      return errors::RanksDisagree(
          {by, rank}, absl::StrCat("parameter \"", EscapeName(parameter.name), "\": rank ", by,
                                   " has counted ", parameter.steps, " steps, rank ", rank, " ",
                                   count.steps, scalars.empty() ? "" : "; ", scalars));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NewCheckpoint> CreateCheckpoint(Directory& root, StepNumber step) {
  const auto entries = root.List();
  if (!entries.ok()) return entries.status();
  int attempt = 0;
  for (const DirectoryEntry& entry : *entries) {
    const auto name = ParseCheckpointName(entry.name);
    if (name && name->step == step) attempt = std::max(attempt, name->attempt + 1);
  }
  absl::Status made;
  for (const int end = attempt + kAttempts; attempt < end; ++attempt) {
    const std::string name = CheckpointNameText({step, attempt});
    made = root.CreateDirectory(name);
    if (absl::IsAlreadyExists(made)) continue;  // another process was faster
    if (made.ok()) made = root.Sync();
    if (!made.ok()) return made;
    auto directory = root.OpenDirectory(name);
    if (!directory.ok()) return directory.status();
    return NewCheckpoint{name, *std::move(directory)};
  }
  return made;
}

absl::StatusOr<CheckpointManifest> MakeManifest(CheckpointManifest description,
                                                std::vector<OwnerPart> parts) {
  CheckpointManifest manifest = std::move(description);
  std::sort(parts.begin(), parts.end(),
            [](const OwnerPart& a, const OwnerPart& b) { return a.file.rank < b.file.rank; });
  std::vector<Rank> counted_by(manifest.parameters.size(), -1);
  manifest.files.clear();
  for (OwnerPart& part : parts) {
    absl::Status taken = TakeCounts(part, counted_by, manifest);
    if (!taken.ok()) return taken;
    manifest.files.push_back(std::move(part.file));
  }
  const auto uncounted = std::find(counted_by.begin(), counted_by.end(), -1);
  if (uncounted != counted_by.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no rank has counted the steps of parameter \"",
        EscapeName(manifest.parameters[static_cast<size_t>(uncounted - counted_by.begin())].name),
        "\""));
  }
  absl::Status valid = manifest.Validate();
  if (!valid.ok()) return valid;
  return manifest;
}

absl::Status CommitCheckpoint(Directory& checkpoint, const CheckpointManifest& manifest) {
  absl::Status valid = manifest.Validate();
  if (!valid.ok()) return valid;
  // What no program could read is not written.
  const std::string text = ToText(manifest);
  absl::Status readable = ParseManifest(text).status();
  if (!readable.ok()) return errors::WithContext(readable, "the manifest could not be read again");
  // 1. The parts are there, and were synced by those who wrote them.
  absl::Status present = CheckAllPresent(checkpoint, manifest);
  if (!present.ok()) return present;
  const auto committed = checkpoint.OpenFile(kManifestName);
  if (committed.ok()) {
    return absl::AlreadyExistsError(absl::StrCat(checkpoint.path(), " is committed already"));
  }
  if (!absl::IsNotFound(committed.status())) return committed.status();
  // 2. The manifest is on the device before it has its name; until then the name is one's own.
  const std::string unfinished = absl::StrCat(kManifestName, ".unfinished.", NewRequestId());
  absl::Status written = WriteSynced(checkpoint, unfinished, text);
  // 3. It gets its name: all of it, or nothing. A network file system may report an error of a
  // request that it has repeated after it was done.
  if (written.ok()) {
    written = checkpoint.RenameNew(unfinished, kManifestName);
    if (!written.ok() && HasText(checkpoint, text)) {
      checkpoint.Remove(unfinished).IgnoreError();
      written = absl::OkStatus();
    }
  }
  if (!written.ok()) {
    checkpoint.Remove(unfinished).IgnoreError();
    if (!absl::IsNotFound(written)) return written;
    return absl::FailedPreconditionError(
        absl::StrCat("another process has removed the checkpoint: ", written.message()));
  }
  // 4. Nobody has begun to remove it.
  const absl::Status kept = CheckNotRemoved(checkpoint, manifest);
  if (!kept.ok()) return TakeBack(checkpoint, kept);
  // 5. The name is on the device.
  return errors::WithContext(checkpoint.Sync(),
                             "the checkpoint is complete, but a power failure may undo that");
}

}  // namespace optshard
