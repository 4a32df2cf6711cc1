#include "client/owner/checkpoint_saving.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace optshard {

absl::Status CheckpointSaving::Save(const std::string& directory,
                                    const std::vector<std::string>& labels, StepNumber finished) {
  const absl::StatusOr<std::string> former = Wait();
  if (!former.ok()) return former.status();
  CheckpointCall::Request request;
  request.coordinator = owner_.coordinator_address();
  request.optimizer = options_.optimizer;
  request.directory = directory;
  request.labels = labels;
  request.step = finished;
  request.rank = options_.rank;
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
  last_path_ = absl::StrCat(saved->directory, "/", saved->name);
  return last_path_;
}

}  // namespace optshard
