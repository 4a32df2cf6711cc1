#include "server/coordinator/saving/checkpoint_saves.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/named_directory.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {

CheckpointSave::Status CheckpointSave::Read() const {
  Status status;
  status.progress = board_->Read();
  status.is_model = order_.model_shard_bytes.has_value();
  absl::MutexLock lock(&mutex_);
  status.ended = ended_;
  status.error = error_;
  status.saved = saved_;
  return status;
}

CheckpointSave::WatchNumber CheckpointSave::Watch(std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  watches_[++next_watch_] = std::move(wake);
  return next_watch_;
}

void CheckpointSave::Unwatch(WatchNumber watch) {
  absl::MutexLock lock(&mutex_);
  watches_.erase(watch);
}

bool CheckpointSave::IsFor(const SaveRequest& request, Generation present) const {
  if (!request.request_id.empty() && request.request_id == request_.request_id) return true;
  if (request.model_shard_bytes != request_.model_shard_bytes) return false;
  if (!request.step.has_value() || request.directory != request_.directory) return false;
  if (HasFailed()) return false;
  const SaveProgress progress = board_->Read();
  // Before a snapshot is open, what the first caller expects.
  if (!progress.step.has_value()) return request_.step == request.step && generation_ == present;
  return *progress.step == *request.step && progress.generation == present;
}

bool CheckpointSave::HasFailed() const {
  absl::MutexLock lock(&mutex_);
  return ended_ && !error_.ok();
}

bool CheckpointSave::GivesWay() const {
  return request_.awaits_step && !board_->Read().step.has_value();
}

void CheckpointSave::End(absl::StatusOr<SavedCheckpoint> result) {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    error_ = result.status();
    if (result.ok()) saved_ = *std::move(result);
  }
  Wake();
}

void CheckpointSave::Wake() {
  std::map<WatchNumber, std::function<void()>> watches;
  {
    absl::MutexLock lock(&mutex_);
    watches = watches_;
  }
  for (const auto& [number, wake] : watches) wake();
}

CheckpointSaves::CheckpointSaves(Options options)
    : options_(std::move(options)), driver_(options_.driver) {}

CheckpointSaves::~CheckpointSaves() { Shutdown(); }

absl::StatusOr<std::shared_ptr<CheckpointSave>> CheckpointSaves::Begin(const SaveRequest& asked) {
  SaveRequest request = asked;
  if (request.optimizer.empty()) request.optimizer = "default";
  const bool is_model = request.model_shard_bytes.has_value();
  if (is_model && *request.model_shard_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a file of the model is to have %d bytes, expected 1 at least",
                        *request.model_shard_bytes));
  }
  if (is_model && request.directory.empty()) {
    return absl::InvalidArgumentError("the request names no directory for the model");
  }
  if (request.directory.empty()) request.directory = options_.directory;
  if (request.directory.empty()) {
    return absl::FailedPreconditionError(
        "the request names no directory, and the coordinator has no --checkpoint-dir");
  }
  absl::Status checked = CheckNamedDirectory(request.directory);
  if (checked.ok()) checked = CheckLabels(request.labels);
  if (!checked.ok()) return checked;
  const Generation present = options_.driver.owners->generation(request.optimizer);
  absl::MutexLock lock(&mutex_);
  if (stopped_) return absl::UnavailableError("the coordinator is stopped");
  Running& last = last_[request.optimizer];
  if (last.save != nullptr) {
    if (last.save->IsFor(request, present) && last.save->order_.labels->Add(request.labels)) {
      return last.save;
    }
    const CheckpointSave::Status status = last.save->Read();
    if (last.save->GivesWay() && !request.awaits_step) {
      last.save->cancellation_.Cancel(absl::AbortedError("another save goes first"));
    } else if (!status.ended) {
      return absl::FailedPreconditionError(
          absl::StrFormat("another save of optimizer \"%s\" is under way: %s; wait for it",
                          request.optimizer, Summary(status, last.save->directory())));
    }
  }
  SaveOrder order;
  order.optimizer = request.optimizer;
  order.directory = request.directory;
  order.labels = std::make_shared<SaveLabels>(request.labels);
  order.step = request.step;
  order.awaits_step = request.awaits_step;
  order.patience = request.patience;
  order.model_shard_bytes = request.model_shard_bytes;
  if (!is_model && request.directory == options_.directory) order.prune = options_.prune;
  // Its thread keeps it.
  const std::shared_ptr<CheckpointSave> save(
      new CheckpointSave(request, present, std::move(order)));
  save->board_ = std::make_shared<SaveBoard>([weak = std::weak_ptr<CheckpointSave>(save)] {
    if (const auto watched = weak.lock()) watched->Wake();
  });
  last.save = save;
  last.thread = std::thread([this, save, former = std::move(last.thread)]() mutable {
    // One that gave way, and is perhaps held up by the file system.
    if (former.joinable()) former.join();
    auto result = driver_.Save(save->order_, save->cancellation_, save->board_);
    LogResult(*save, result);
    save->End(std::move(result));
  });
  return save;
}

void CheckpointSaves::LogResult(const CheckpointSave& save,
                                const absl::StatusOr<SavedCheckpoint>& result) const {
  const SaveProgress progress = save.board_->Read();
  LogContext context;
  context.role = "coordinator";
  context.job = options_.job;
  context.generation = progress.generation;
  context.step = progress.step.value_or(0);
  if (save.order_.model_shard_bytes.has_value()) {
    Log(result.ok() ? LogLevel::kInfo : LogLevel::kWarning, context,
        "the model of optimizer \"%s\" in %s: %s", save.order_.optimizer, save.order_.directory,
        result.ok() ? SizeText(result->bytes) : result.status().ToString());
    return;
  }
  if (!result.ok()) {
    Log(LogLevel::kWarning, context, "no checkpoint of optimizer \"%s\" in %s: %s",
        save.order_.optimizer, save.order_.directory, result.status().ToString());
    return;
  }
  Log(LogLevel::kInfo, context, "saved a checkpoint of optimizer \"%s\": %s/%s, %s",
      save.order_.optimizer, save.order_.directory, result->name, SizeText(result->bytes));
  if (result->removal.ok()) return;
  Log(LogLevel::kWarning, context, "older checkpoints of optimizer \"%s\" are not removed: %s",
      save.order_.optimizer, result->removal.ToString());
}

void CheckpointSaves::Shutdown() {
  absl::MutexLock stopping(&stopping_);
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [optimizer, last] : last_) {
      if (last.save == nullptr) continue;
      last.save->cancellation_.Cancel(absl::UnavailableError("the coordinator is stopped"));
      if (last.thread.joinable()) threads.push_back(std::move(last.thread));
    }
  }
  for (std::thread& thread : threads) thread.join();
}

std::string Summary(const CheckpointSave::Status& status, const std::string& directory) {
  const SaveProgress& progress = status.progress;
  const absl::string_view what = status.is_model ? "model" : "checkpoint";
  if (status.ended && !status.error.ok()) {
    return absl::StrFormat("no %s in %s: %s", what, directory, status.error.message());
  }
  const std::string& name = status.ended ? status.saved.name : progress.name;
  const std::string path = name.empty() ? directory : absl::StrCat(directory, "/", name);
  if (status.ended) {
    return absl::StrFormat("saved step %d to %s, %s", status.saved.step, path,
                           SizeText(status.saved.bytes));
  }
  if (!progress.step.has_value()) {
    return absl::StrFormat("%s snapshots for a %s in %s", NameOf(progress.phase), what, directory);
  }
  if (progress.phase < SavePhase::kWriting) {
    return absl::StrFormat("%s snapshots of step %d for a %s in %s", NameOf(progress.phase),
                           *progress.step, what, directory);
  }
  return absl::StrFormat("%s step %d to %s: %s of %s, %d of %d ranks done", NameOf(progress.phase),
                         *progress.step, path, SizeText(progress.bytes),
                         SizeText(progress.all_bytes), progress.written, progress.opened.size());
}

}  // namespace optshard
