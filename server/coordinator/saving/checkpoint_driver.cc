#include "server/coordinator/saving/checkpoint_driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/errors.h"
#include "common/request_limits.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/named_directory.h"
#include "server/coordinator/saving/owner_answers.h"

namespace optshard {
namespace {

// The owners could not open their snapshots together: another one may be luckier.
constexpr int kOpenAttempts = 3;

// That an owner says to have, or to have written. The sum over all ranks fits into 63 bits.
constexpr int64_t kMostOwnerBytes = int64_t{1} << 46;
static_assert(kMostOwnerBytes <= INT64_MAX / kMaxWorldSize, "it fits");

using Owners = std::vector<std::unique_ptr<OwnerSave>>;
using Board = std::shared_ptr<SaveBoard>;

absl::StatusOr<std::unique_ptr<Directory>> OpenAbove(FileSystem& files, const std::string& path) {
  return files.OpenDirectory(path.substr(0, std::max<size_t>(path.rfind('/'), 1)));
}

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
  const absl::Status made = (*above)->CreateDirectory(path.substr(path.rfind('/') + 1));
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  const absl::Status synced = (*above)->Sync();
  if (!synced.ok()) return synced;
  return files.OpenDirectory(path);
}

void CancelAll(const Owners& owners) {
  for (const std::unique_ptr<OwnerSave>& owner : owners) owner->Cancel();
}

absl::Status PrepareAll(const Owners& owners, absl::Duration timeout, Cancellation& cancellation) {
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
  return answers->Await(timeout, cancellation, "prepare a snapshot for a checkpoint").status();
}

// Whose state all have opened. ABORTED where that is not the same: param groups were added.
absl::StatusOr<SnapshotMoment> OpenAll(const Owners& owners, absl::Duration timeout,
                                       Cancellation& cancellation, const Board& board,
                                       int attempt) {
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
  const auto opened = answers->Await(timeout, cancellation, "open a snapshot for a checkpoint");
  if (!opened.ok()) return opened.status();
  const SnapshotMoment first = opened->front();
  for (size_t rank = 1; rank < opened->size(); ++rank) {
    const SnapshotMoment& other = (*opened)[rank];
    if (other == first) continue;
    return absl::AbortedError(absl::StrFormat(
        "rank 0 has opened its snapshot at step %d (generation %d), rank %d at step %d "
        "(generation %d): save again",
        first.step, first.generation, rank, other.step, other.generation));
  }
  return first;
}

// How far each owner is.
class WriteProgress {
 public:
  WriteProgress(size_t owners, Board board) : ranks_(owners), board_(std::move(board)) {}

  void Set(Rank rank, int64_t bytes, int64_t all) {
    board_->Update([&](SaveProgress& progress) {
      // Under the board's lock.
      progress.bytes += bytes - ranks_[rank].bytes;
      progress.all_bytes += all - ranks_[rank].all;
      ranks_[rank] = {bytes, all};
    });
  }

 private:
  struct OfRank {
    int64_t bytes = 0;
    int64_t all = 0;
  };
  std::vector<OfRank> ranks_;
  const Board board_;
};

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
    checked = CheckRoot(*options_.files, path);
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
        order_.optimizer, order_.awaits_step ? order_.step : absl::optional<StepNumber>());
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
    absl::Status prepared = PrepareAll(owners_, options_.prepare_timeout, cancellation_);
    if (!prepared.ok()) return prepared;
    board_->Update([](SaveProgress& progress) { progress.phase = SavePhase::kOpening; });
    return OpenAll(owners_, std::min(options_.open_timeout, order_.patience), cancellation_, board_,
                   attempt_);
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
    const auto answers = std::make_shared<OwnerAnswers<WrittenShard>>(owners_.size());
    const auto written = std::make_shared<WriteProgress>(owners_.size(), board_);
    for (size_t i = 0; i < owners_.size(); ++i) {
      const auto rank = static_cast<Rank>(i);
      owners_[i]->Write(
          root.path(), name,
          [answers, written, rank](int64_t bytes, int64_t all) {
            if (bytes < 0 || bytes > all || all > kMostOwnerBytes) {
              return answers->Take(
                  rank, absl::InternalError(absl::StrFormat(
                            "it says that it has written %d of %d bytes, expected 0 to as many "
                            "as there are, and at most %d: report it",
                            bytes, all, kMostOwnerBytes)));
            }
            answers->Hear(rank);
            written->Set(rank, bytes, all);
          },
          [answers, rank, board = board_](absl::StatusOr<WrittenShard> shard) {
            if (shard.ok()) board->Update([](SaveProgress& progress) { ++progress.written; });
            answers->Take(rank, std::move(shard));
          });
    }
    auto all = answers->Await(options_.longest_stall, cancellation_,
                              absl::StrCat("write to ", root.path(), "/", name));
    if (!all.ok()) {
      // Before what they have written is removed.
      CancelAll(owners_);
      answers->AwaitEnd(options_.end_timeout);
    }
    return all;
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
