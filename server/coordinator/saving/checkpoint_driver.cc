#include "server/coordinator/saving/checkpoint_driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/model_export.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/named_directory.h"
#include "server/coordinator/saving/owner_answers.h"
#include "server/coordinator/saving/owner_writes.h"

namespace optshard {
namespace {

// The owners could not open their snapshots together: another one may be luckier.
constexpr int kOpenAttempts = 3;

using Owners = std::vector<std::unique_ptr<OwnerSave>>;
using Board = std::shared_ptr<SaveBoard>;

absl::StatusOr<std::unique_ptr<Directory>> OpenAbove(FileSystem& files, const std::string& path) {
  return files.OpenDirectory(path.substr(0, std::max<size_t>(path.rfind('/'), 1)));
}

std::string NameIn(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Whether it is there, or can be created.
absl::Status CheckRoot(FileSystem& files, const std::string& path) {
  const absl::Status there = files.OpenDirectory(path).status();
  return absl::IsNotFound(there) ? OpenAbove(files, path).status() : there;
}

absl::StatusOr<std::unique_ptr<Directory>> OpenRoot(FileSystem& files, const std::string& path) {
  auto root = files.OpenDirectory(path);
  if (!absl::IsNotFound(root.status())) return root;
  const auto above = OpenAbove(files, path);
  if (!above.ok()) return above.status();
  const absl::Status made = (*above)->CreateDirectory(NameIn(path));
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  const absl::Status synced = (*above)->Sync();
  if (!synced.ok()) return synced;
  return files.OpenDirectory(path);
}

absl::Status PrepareAll(const Owners& owners, absl::Duration timeout, Cancellation& cancellation,
                        absl::string_view what) {
  const auto answers = std::make_shared<OwnerAnswers<bool>>(owners.size());
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    owners[i]->Prepare([answers, rank](const absl::Status& status) {
      if (status.ok()) {
        answers->Take(rank, true);
      } else {
        answers->Take(rank, status);
      }
    });
  }
  return answers->Await(timeout, cancellation, absl::StrCat("prepare a snapshot for ", what))
      .status();
}

// Whose state all have opened. ABORTED where that is not the same: param groups were added.
absl::StatusOr<SnapshotMoment> OpenAll(const Owners& owners, absl::Duration timeout,
                                       Cancellation& cancellation, const Board& board, int attempt,
                                       absl::string_view what) {
  const auto answers = std::make_shared<OwnerAnswers<SnapshotMoment>>(owners.size());
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    owners[i]->Open([answers, rank, board, attempt](const absl::StatusOr<SnapshotMoment>& opened) {
      if (opened.ok()) {
        board->Update([&](SaveProgress& progress) {
          // Too late: it was given up, and another attempt is under way.
          if (progress.attempt != attempt) return;
          progress.step = opened->step;
          progress.generation = opened->generation;
          progress.opened[rank] = true;
        });
      }
      answers->Take(rank, opened);
    });
  }
  const std::string awaited = absl::StrCat("open a snapshot for ", what);
  const auto earliest = answers->AwaitFirst(timeout, cancellation, awaited);
  if (!earliest.ok()) return earliest.status();
  // Who is in the next step already need not wait until that rank votes in it: perhaps it waits for
  // the checkpoint first.
  for (const Rank rank : earliest->missing) owners[rank]->OpenedElsewhere(earliest->answer);
  const auto opened = answers->Await(timeout, cancellation, awaited);
  if (!opened.ok()) return opened.status();
  const SnapshotMoment first = opened->front();
  for (size_t rank = 1; rank < opened->size(); ++rank) {
    const SnapshotMoment& other = (*opened)[rank];
    if (other == first) continue;
    return absl::AbortedError(
        absl::StrFormat("rank 0 has opened its snapshot at step %d (generation %d, after %d "
                        "skipped calls), rank %d "
                        "at step %d (generation %d, after %d): save again",
                        first.step, first.generation, first.skipped, rank, other.step,
                        other.generation, other.skipped));
  }
  return first;
}

}  // namespace

// One call of Save.
class CheckpointDriver::Run {
 public:
  Run(const Options& options, const SaveOrder& order, Cancellation& cancellation, Board board)
      : options_(options), order_(order), cancellation_(cancellation), board_(std::move(board)) {}

  absl::StatusOr<SavedCheckpoint> Save() {
    absl::Status checked = CheckNamedDirectory(order_.directory);
    if (checked.ok()) checked = CheckLabels(order_.labels->Read());
    if (!checked.ok()) return checked;
    std::string path = order_.directory;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const bool is_model = order_.model_shard_bytes.has_value();
    checked = is_model ? CheckModelPath(path) : CheckRoot(*options_.files, path);
    if (!checked.ok()) return checked;
    auto opened = Open();
    if (!opened.ok()) return opened.status();
    if (opened->step != order_.step.value_or(opened->step)) {
      CancelAll(owners_);
      return absl::AbortedError(
          absl::StrFormat("the owners have opened their snapshots at step %d, and step %d was to "
                          "be saved: save again",
                          opened->step, *order_.step));
    }
    if (is_model) return ExportModel(path, *opened);
    const auto root = OpenRoot(*options_.files, path);
    auto made = root.ok() ? CreateCheckpoint(**root, opened->step) : root.status();
    if (!made.ok()) {
      CancelAll(owners_);
      return made.status();
    }
    auto saved = WriteAndCommit(**root, *made, *opened);
    if (!saved.ok()) return RemoveRest(**root, made->name, saved.status());
    if (order_.prune.keep_last > 0) saved->removal = Prune(**root, *saved);
    return saved;
  }

 private:
  absl::StatusOr<SnapshotMoment> Open() {
    absl::StatusOr<SnapshotMoment> opened;
    // A step that was missed does not come again.
    const int attempts = order_.awaits_step ? 1 : kOpenAttempts;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      opened = TryOpen();
      if (!absl::IsAborted(opened.status())) break;
    }
    return opened;
  }

  absl::StatusOr<SnapshotMoment> TryOpen() {
    auto owners = options_.owners->Connect(
        order_.optimizer, order_.awaits_step ? order_.step : absl::optional<StepNumber>(),
        order_.model_shard_bytes.has_value());
    if (!owners.ok()) return owners.status();
    owners_ = *std::move(owners);
    ++attempt_;
    board_->Update([&](SaveProgress& progress) {
      progress = SaveProgress();
      progress.attempt = attempt_;
      progress.opened.assign(owners_.size(), false);
    });
    auto opened = PrepareAndOpen();
    if (!opened.ok()) CancelAll(owners_);
    return opened;
  }

  absl::StatusOr<SnapshotMoment> PrepareAndOpen() {
    absl::Status prepared = PrepareAll(owners_, options_.prepare_timeout, cancellation_, what());
    if (!prepared.ok()) return prepared;
    board_->Update([](SaveProgress& progress) { progress.phase = SavePhase::kOpening; });
    return OpenAll(owners_, std::min(options_.open_timeout, order_.patience), cancellation_, board_,
                   attempt_, what());
  }

  absl::StatusOr<SavedCheckpoint> WriteAndCommit(Directory& root, const NewCheckpoint& made,
                                                 const SnapshotMoment& opened) {
    board_->Update([&](SaveProgress& progress) {
      progress.phase = SavePhase::kWriting;
      progress.name = made.name;
    });
    auto written = WriteAll(root, made.name);
    if (!written.ok()) return written.status();
    board_->Update([](SaveProgress& progress) { progress.phase = SavePhase::kCommitting; });
    auto manifest = ManifestOf(*std::move(written), opened);
    if (!manifest.ok()) return manifest.status();
    absl::Status committed = CommitCheckpoint(*made.directory, *manifest);
    if (!committed.ok()) return committed;
    SavedCheckpoint saved;
    saved.name = made.name;
    saved.step = opened.step;
    saved.bytes = manifest->bytes();
    job_ = manifest->job;
    return saved;
  }

  absl::StatusOr<std::vector<WrittenShard>> WriteAll(const Directory& root,
                                                     const std::string& name) {
    return WriteAtAll<WrittenShard>(
        owners_, board_, WaitFor(absl::StrCat(root.path(), "/", name)), cancellation_,
        [&](OwnerSave& owner, std::function<void(int64_t, int64_t)> progress,
            std::function<void(absl::StatusOr<WrittenShard>)> done) {
          owner.Write(root.path(), name, std::move(progress), std::move(done));
        });
  }

  WriteWait WaitFor(const std::string& path) const {
    return {absl::StrCat("write to ", path), options_.longest_stall, options_.end_timeout};
  }

  // Of which the snapshot is opened.
  absl::string_view what() const {
    return order_.model_shard_bytes.has_value() ? "a model" : "a checkpoint";
  }

  absl::Status CheckModelPath(const std::string& path) {
    const auto above = OpenAbove(*options_.files, path);
    return above.ok() ? CheckModelName(**above, NameIn(path)) : above.status();
  }

  absl::StatusOr<SavedCheckpoint> ExportModel(const std::string& path,
                                              const SnapshotMoment& opened) {
    const auto above = OpenAbove(*options_.files, path);
    const auto layout = above.ok() ? Layout(opened) : above.status();
    auto made = layout.ok() ? CreateModel(**above, NameIn(path), *layout) : layout.status();
    if (!made.ok()) {
      CancelAll(owners_);
      return made.status();
    }
    absl::Status exported = WriteModel(**above, *made, *layout);
    if (exported.ok()) {
      board_->Update([](SaveProgress& progress) { progress.phase = SavePhase::kCommitting; });
      exported = CommitModel(**above, *made, NameIn(path), *layout);
    }
    if (!exported.ok()) {
      const absl::Status removed = RemoveUnfinishedModel(**above, made->name);
      if (removed.ok()) return exported;
      return errors::WithContext(
          exported, absl::StrCat((*above)->path(), "/", made->name, " is not finished and stays (",
                                 removed.message(), "): remove it"));
    }
    SavedCheckpoint saved;
    saved.step = opened.step;
    saved.bytes = layout->file_bytes();
    return saved;
  }

  absl::StatusOr<ModelLayout> Layout(const SnapshotMoment& opened) {
    const auto tensors = options_.owners->ModelTensors(order_.optimizer, opened.generation);
    if (!tensors.ok()) return tensors.status();
    return LayOutModel(*tensors, *order_.model_shard_bytes);
  }

  // By all owners, each element once.
  absl::Status WriteModel(const Directory& above, const UnfinishedModel& model,
                          const ModelLayout& layout) {
    board_->Update([](SaveProgress& progress) { progress.phase = SavePhase::kWriting; });
    const ModelShare share = {above.path(), model.name, *order_.model_shard_bytes,
                              layout.checksum()};
    const auto written = WriteAtAll<int64_t>(
        owners_, board_, WaitFor(absl::StrCat(above.path(), "/", model.name)), cancellation_,
        [&](OwnerSave& owner, std::function<void(int64_t, int64_t)> progress,
            std::function<void(absl::StatusOr<int64_t>)> done) {
          owner.WriteModel(share, std::move(progress), std::move(done));
        });
    if (!written.ok()) return written.status();
    int64_t bytes = 0;
    for (const int64_t share_bytes : *written) bytes += share_bytes;
    if (bytes == layout.tensor_bytes) return absl::OkStatus();
    return absl::InternalError(
        absl::StrFormat("all owners together have written %d bytes of a model of %d: report it",
                        bytes, layout.tensor_bytes));
  }

  absl::StatusOr<CheckpointManifest> ManifestOf(std::vector<WrittenShard> written,
                                                const SnapshotMoment& opened) const {
    if (!written.front().description.has_value()) {
      return absl::InternalError("rank 0 has not said what the checkpoint is");
    }
    CheckpointManifest description = *std::move(written.front().description);
    if (description.generation != opened.generation) {
      return absl::AbortedError(
          absl::StrFormat("rank 0 has opened generation %d and describes generation %d: save again",
                          opened.generation, description.generation));
    }
    description.step = opened.step;
    description.saved_at = options_.wall_clock();
    description.labels = order_.labels->Take();
    std::vector<OwnerPart> parts;
    for (size_t rank = 0; rank < written.size(); ++rank) {
      if (written[rank].part.file.rank != static_cast<Rank>(rank)) {
        return absl::InternalError(absl::StrFormat("rank %d has written the file of rank %d", rank,
                                                   written[rank].part.file.rank));
      }
      parts.push_back(std::move(written[rank].part));
    }
    return MakeManifest(std::move(description), std::move(parts));
  }

  // What a save that has failed leaves behind; nothing where it is committed all the same.
  static absl::Status RemoveRest(Directory& root, const std::string& name, absl::Status why) {
    CheckpointEntry entry;
    entry.name = name;
    const auto removed = RemoveCheckpoint(root, entry);
    if (removed.ok()) return why;
    return errors::WithContext(why, absl::StrCat(root.path(), "/", name,
                                                 " is not committed and "
                                                 "stays (",
                                                 removed.status().message(), ")"));
  }

  absl::Status Prune(Directory& root, SavedCheckpoint& saved) const {
    auto entries = ListCheckpoints(root);
    if (!entries.ok()) return entries.status();
    // Those of others are not this order's.
    entries->erase(
        std::remove_if(entries->begin(), entries->end(),
                       [&](const CheckpointEntry& entry) {
                         return entry.state == CheckpointState::kCommitted &&
                                (entry.job != job_ || entry.optimizer != order_.optimizer);
                       }),
        entries->end());
    const std::vector<PruneDecision> decisions = DecidePrune(*entries, order_.prune);
    for (size_t i = 0; i < decisions.size(); ++i) {
      if (!decisions[i].remove) continue;
      const auto removed = RemoveCheckpoint(root, (*entries)[i]);
      if (!removed.ok()) return removed.status();
      if (*removed == Removal::kRemoved) saved.removed.push_back(decisions[i].name);
    }
    return absl::OkStatus();
  }

  const Options& options_;
  const SaveOrder& order_;
  Cancellation& cancellation_;
  const Board board_;
  Owners owners_;
  int attempt_ = 0;
  std::string job_;
};

absl::StatusOr<SavedCheckpoint> CheckpointDriver::Save(const SaveOrder& order,
                                                       Cancellation& cancellation,
                                                       const std::shared_ptr<SaveBoard>& board) {
  return Run(options_, order, cancellation, board).Save();
}

absl::string_view NameOf(SavePhase phase) {
  switch (phase) {
    case SavePhase::kPreparing:
      return "preparing";
    case SavePhase::kOpening:
      return "opening";
    case SavePhase::kWriting:
      return "writing";
    case SavePhase::kCommitting:
      return "committing";
  }
  return "unknown";
}

}  // namespace optshard
