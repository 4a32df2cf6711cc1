#include "client/owner/checkpoint_loading.h"

#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "client/owner/caught_errors.h"
#include "client/owner/checkpoint_match.h"
#include "client/owner/checkpoint_share.h"
#include "common/attach/attachment.h"
#include "common/digest.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/request_id.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/newest_checkpoint.h"
#include "server/checkpoint/posix_file_system.h"

namespace optshard {
namespace {

// Ranks that read wait for one that is so slow. Who is dead is known much sooner.
constexpr int64_t kSlowestBytesPerSecond = int64_t{16} << 20;

// One rank's part of the call.
class Loading {
 public:
  Loading(const CheckpointLoadOptions& options, std::string directory)
      : options_(options), directory_(std::move(directory)), exchange_(*options.exchange) {}

  absl::StatusOr<CheckpointLoad> Run(const std::string& name) {
    absl::Status done = Choose(name);
    while (done.ok()) {
      done = Open();
      if (done.ok()) done = Stage();
      // All ranks have the same error.
      if (!name.empty() || !IsDamage(done)) break;
      damaged_.emplace(load_.loaded.name, done.message());
      done = ChooseNewest();
    }
    if (done.ok()) {
      done = options_.finish({load_.loaded.step, match_.hyperparameters, load_.blob, NewToken()},
                             exchange_.options().timeout);
    }
    if (!done.ok()) return done;
    return std::move(load_);
  }

  absl::Status CheckLoadable(const std::string& name) {
    return Trying([&] {
      load_.loaded.name = name;
      absl::Status done = name.empty() ? FindNewest() : absl::OkStatus();
      std::vector<std::string> lines;
      if (done.ok()) done = OpenHere(&lines);
      // The ranks choose another one then.
      if (name.empty() && IsDamage(done)) return absl::OkStatus();
      if (done.ok()) done = MatchHere();
      return done;
    });
  }

 private:
  Rank rank() const { return exchange_.options().rank; }

  absl::Status Choose(const std::string& name) {
    // No name has a blank.
    absl::Status same = exchange_.Compare({absl::StrCat("the name of the checkpoint ", name)});
    if (!same.ok()) return same;
    load_.loaded.name = name;
    return name.empty() ? ChooseNewest() : same;
  }

  absl::Status ChooseNewest() {
    absl::Status chosen =
        exchange_.Agree(Trying([this] { return rank() == 0 ? FindNewest() : absl::OkStatus(); }));
    // No name has a line break.
    std::string text = absl::StrCat(load_.loaded.name, "\n", load_.loaded.passed_over);
    if (chosen.ok()) chosen = exchange_.Send(0, kFromEveryRank, &text);
    if (!chosen.ok()) return chosen;
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 1));
    std::tie(load_.loaded.name, load_.loaded.passed_over) = parts;
    return chosen;
  }

  // Of the files: a rank that is lost does not make them worse.
  static bool IsDamage(const absl::Status& status) {
    return absl::IsDataLoss(status) && !errors::IsTornStep(status) &&
           !errors::IsStepInDoubt(status);
  }

  absl::Status FindNewest() {
    const auto root = files_.OpenDirectory(directory_);
    if (!root.ok()) return root.status();
    const auto newest = FindNewestCheckpoint(**root, options_.job, options_.optimizer, damaged_);
    if (!newest.ok()) return newest.status();
    if (!newest->entry.has_value()) {
      const auto besides = [](absl::string_view what, const std::string& which) {
        return which.empty() ? std::string() : absl::StrCat("; ", what, ": ", which);
      };
      return absl::Status(
          damaged_.empty() ? absl::StatusCode::kNotFound : absl::StatusCode::kDataLoss,
          absl::StrCat(directory_, " has no checkpoint of job \"", options_.job, "\", optimizer \"",
                       options_.optimizer, "\"", damaged_.empty() ? "" : " that can be loaded",
                       besides("there are those of", newest->others),
                       besides("damaged", newest->passed_over)));
    }
    load_.loaded.name = newest->entry->name;
    load_.loaded.passed_over = newest->passed_over;
    if (!newest->passed_over.empty()) {
      Log(LogLevel::kWarning, {"client", options_.job, rank()},
          "goes on from %s; what is newer cannot be loaded: %s", load_.loaded.name,
          newest->passed_over);
    }
    return absl::OkStatus();
  }

  absl::Status Open() {
    std::vector<std::string> lines;
    absl::Status opened = exchange_.Agree(Trying([&] { return OpenHere(&lines); }));
    if (opened.ok()) opened = exchange_.Compare(lines);
    if (!opened.ok()) return opened;
    return exchange_.Agree(Trying([this] { return MatchHere(); }));
  }

  absl::Status MatchHere() {
    absl::StatusOr<CheckpointMatch> match =
        MatchCheckpoint(checkpoint_->manifest(), *options_.layout);
    if (!match.ok()) return errors::WithContext(match.status(), path());
    match_ = *std::move(match);
    load_.hyperparameters = match_.hyperparameters;
    return absl::OkStatus();
  }

  // With what must be the same on all ranks.
  absl::Status OpenHere(std::vector<std::string>* lines) {
    const auto root = files_.OpenDirectory(directory_);
    if (!root.ok()) return root.status();
    auto directory = (*root)->OpenDirectory(load_.loaded.name);
    if (!directory.ok()) return directory.status();
    auto opened = CheckpointReader::Open(*std::move(directory));
    if (absl::IsNotFound(opened.status())) {
      return absl::NotFoundError(
          absl::StrCat(path(), " is no committed checkpoint: ", opened.status().message()));
    }
    if (!opened.ok()) return opened.status();
    checkpoint_ = *std::move(opened);
    const CheckpointManifest& manifest = checkpoint_->manifest();
    // A directory that somebody has given another name says nothing.
    const absl::optional<CheckpointName> named = ParseCheckpointName(load_.loaded.name);
    if (named.has_value() && named->step != manifest.step) {
      return absl::DataLossError(absl::StrCat(path(), " has a manifest of step ", manifest.step));
    }
    load_.loaded.step = manifest.step;
    load_.loaded.world_size = manifest.world_size;
    const uint64_t digest = DigestBuilder("optshard.Checkpoint").AddText(ToText(manifest)).value();
    *lines = {absl::StrCat("the step of the checkpoint ", manifest.step),
              absl::StrCat("the manifest of the checkpoint ", digest)};
    return absl::OkStatus();
  }

  absl::Status Stage() {
    exchange_.AddPatience(absl::Seconds(checkpoint_->manifest().bytes() / kSlowestBytesPerSecond));
    return exchange_.Agree(Trying([this] {
      absl::Status staged = options_.check_parameters();
      if (staged.ok()) staged = StageHere();
      return staged.ok() ? ReadBlob() : staged;
    }));
  }

  absl::Status StageHere() {
    const absl::StatusOr<StateAccess*> state =
        exchange_.options().owner->state(exchange_.options().timeout);
    if (!state.ok()) return state.status();
    absl::Status begun = (*state)->BeginStaging(Replacing::kAll);
    if (!begun.ok()) return begun;
    return CheckpointShare(checkpoint_.get(), &match_, options_.layout, rank()).Stage(**state);
  }

  absl::Status ReadBlob() {
    load_.blob.clear();  // of one that was damaged
    if (load_.loaded.world_size != exchange_.options().world_size) return absl::OkStatus();
    absl::StatusOr<absl::optional<std::string>> blob = checkpoint_->ReadBlob(rank());
    if (!blob.ok()) return blob.status();
    load_.blob = std::move(*blob).value_or("");
    return CheckBlobSize(rank(), load_.blob);
  }

  std::string path() const { return absl::StrCat(directory_, "/", load_.loaded.name); }

  const CheckpointLoadOptions& options_;
  const std::string directory_;
  PosixFileSystem files_;
  RankExchange& exchange_;
  std::map<std::string, std::string> damaged_;  // what was found on reading them, by name
  std::unique_ptr<CheckpointReader> checkpoint_;
  CheckpointMatch match_;
  CheckpointLoad load_;
};

}  // namespace

absl::StatusOr<CheckpointLoad> LoadCheckpoint(const CheckpointLoadOptions& options,
                                              const std::string& directory,
                                              const std::string& name) {
  return Loading(options, directory).Run(name);
}

absl::Status CheckLoadable(const CheckpointLoadOptions& options, const std::string& directory,
                           const std::string& name) {
  return Loading(options, directory).CheckLoadable(name);
}

}  // namespace optshard
