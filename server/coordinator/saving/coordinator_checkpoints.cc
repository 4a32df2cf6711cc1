#include "server/coordinator/saving/coordinator_checkpoints.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/membership/membership.h"
#include "server/checkpoint/named_directory.h"

namespace optshard {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorCheckpoints>> CoordinatorCheckpoints::Create(
    const CheckpointOptions& options, Coordinator* coordinator) {
  if (!options.directory.empty()) {
    absl::Status named = CheckNamedDirectory(options.directory);
    if (!named.ok()) return named;
  } else if (options.every > 0 || options.prune.keep_last > 0 || options.prune.keep_every > 0) {
    return absl::InvalidArgumentError(
        "checkpoints are to be saved, or pruned, and no directory is given for them: set "
        "--checkpoint-dir");
  }
  return std::unique_ptr<CoordinatorCheckpoints>(new CoordinatorCheckpoints(options, coordinator));
}

CoordinatorCheckpoints::CoordinatorCheckpoints(const CheckpointOptions& options,
                                               Coordinator* coordinator)
    : coordinator_(*coordinator),
      options_(options),
      owners_(coordinator, CheckpointDriver::Options()),
      saves_(SavesOptions(options)),
      service_(&saves_, coordinator->options().world_size),
      schedule_(options.every) {}

CheckpointSaves::Options CoordinatorCheckpoints::SavesOptions(const CheckpointOptions& options) {
  CheckpointSaves::Options saves;
  saves.driver.files = &files_;
  saves.driver.owners = &owners_;
  saves.job = coordinator_.options().job;
  saves.directory = options.directory;
  saves.prune = options.prune;
  return saves;
}

void CoordinatorCheckpoints::Tick() {
  const absl::Time now = Clock::Monotonic().Now();
  if (options_.every == 0 || now < next_look_) return;
  next_look_ = now + kBetweenLooks;
  const JobStatus status = coordinator_.GetStatus("");
  for (const GroupStatus& group : status.groups) {
    if (group.state != GroupState::kActive) continue;
    StepNumber finished = 0;
    for (const MemberStatus& member : group.members) {
      finished = std::max(finished, member.progress.finished);
    }
    Look(group.optimizer, finished, now);
  }
}

void CoordinatorCheckpoints::Look(const std::string& optimizer, StepNumber finished,
                                  absl::Time now) {
  if (counted_.insert(optimizer).second) {
    LogContext context;
    context.role = "coordinator";
    context.job = coordinator_.options().job;
    Log(LogLevel::kInfo, context,
        "saves optimizer \"%s\" about every %d steps to %s, counted from step %d on", optimizer,
        options_.every, options_.directory, finished);
  }
  const bool is_due = schedule_.IsDue(optimizer, finished);
  const auto upcoming = schedule_.Upcoming(optimizer, finished, now);
  if (const auto at = at_steps_.find(optimizer); at != at_steps_.end()) {
    const CheckpointSave::Status status = at->second->Read();
    if (!status.ended) return;
    at_steps_.erase(at);
    if (status.error.ok()) return schedule_.Saved(optimizer, finished);
  }
  SaveRequest request;
  request.optimizer = optimizer;
  // Where another save is under way, this one follows it.
  if (upcoming.has_value()) {
    request.step = upcoming->step;
    request.awaits_step = true;
    request.patience = upcoming->patience;
    const auto save = saves_.Begin(request);
    if (save.ok()) at_steps_[optimizer] = *save;
  } else if (is_due && saves_.Begin(request).ok()) {
    schedule_.Saved(optimizer, finished);
  }
}

}  // namespace optshard
