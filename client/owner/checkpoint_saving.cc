#include "client/owner/checkpoint_saving.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace optshard {

absl::Status CheckpointSaving::Save(const std::string& directory,
                                    const std::vector<std::string>& labels, StepNumber finished) {
  CheckpointCall::Request request;
  request.directory = directory;
  request.labels = labels;
  return Begin(std::move(request), finished);
}

absl::Status CheckpointSaving::Export(const std::string& directory, int64_t shard_bytes,
                                      StepNumber finished) {
  CheckpointCall::Request request;
  request.directory = directory;
  request.model_shard_bytes = shard_bytes;
  return Begin(std::move(request), finished);
}

absl::Status CheckpointSaving::Begin(CheckpointCall::Request request, StepNumber finished) {
  const absl::StatusOr<std::string> former = Wait();
  if (!former.ok()) return former.status();
  request.coordinator = owner_.coordinator_address();
  request.optimizer = options_.optimizer;
  request.step = finished;
  request.rank = options_.rank;
  request.channels = &channels_;
  call_ = CheckpointCall::Start(request);
  absl::Status opened = call_->AwaitOpened(options_.checkpoint_timeout);
  if (!opened.ok()) call_.reset();
  return opened;
}

absl::StatusOr<std::string> CheckpointSaving::Wait() {
  if (call_ == nullptr) return last_path_;
  const auto saved = call_->Await(options_.checkpoint_timeout);
  call_.reset();
  if (!saved.ok()) return saved.status();
  last_path_ = saved->directory;
  if (!saved->name.empty()) absl::StrAppend(&last_path_, "/", saved->name);
  return last_path_;
}

}  // namespace optshard
