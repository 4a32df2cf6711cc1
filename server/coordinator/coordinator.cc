#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/request_limits.h"
#include "server/coordinator/admission.h"

namespace optshard {
namespace {

// Runs callbacks when it goes out of scope. Declared before the lock, so that it ends after it.
class AfterUnlock {
 public:
  AfterUnlock() = default;
  AfterUnlock(const AfterUnlock&) = delete;
  AfterUnlock& operator=(const AfterUnlock&) = delete;
  ~AfterUnlock() {
    for (const std::function<void()>& callback : deferred_) callback();
  }

  // Of a Group or GroupLives.
  template <typename Source>
  void Take(Source& source) {
    Deferred more = source.TakeDeferred();
    std::move(more.begin(), more.end(), std::back_inserter(deferred_));
  }
  void Add(std::function<void()> callback) { deferred_.push_back(std::move(callback)); }

 private:
  Deferred deferred_;
};

absl::Status CheckPositive(absl::Duration value, absl::string_view name) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the coordinator's ", name, " is ", absl::FormatDuration(value), ", expected more than 0"));
}

// Tells the log in which state the group is.
void LogState(const Group& group, const GroupOptions& options, absl::Time now, AfterUnlock& after) {
  const LogLevel level =
      group.state() == GroupState::kFailed ? LogLevel::kWarning : LogLevel::kInfo;
  if (!LogEnabled(level)) return;
  const GroupStatus status = group.Status(now);
  LogContext context;
  context.role = "coordinator";
  context.job = options.job;
  context.generation = status.generation;
  after.Add([level, context, line = Summary(status)] { LogLine(level, context, line); });
}

// A rank that works on is of a job whose coordinator this one has replaced.
void LogUnknown(const MemberId& member, AfterUnlock& after) {
  LogContext context;
  context.role = "coordinator";
  context.job = member.job;
  context.rank = member.rank;
  after.Add([context, optimizer = member.optimizer] {
    Log(LogLevel::kWarning, context,
        "the rank trains with optimizer \"%s\", whose ranks have joined a coordinator before this "
        "one. Steps go on, but this coordinator saves no checkpoint of it, shows nothing of it and "
        "adds no param groups to it: to have that again, start the job anew from a checkpoint, its "
        "shard servers, too",
        optimizer);
  });
}

// Does so when a call has made the group change it.
class StateChange {
 public:
  StateChange(const Group& group, const GroupOptions& options, absl::Time now, AfterUnlock& after)
      : group_(group), options_(options), now_(now), after_(after), before_(group.state()) {}
  StateChange(const StateChange&) = delete;
  StateChange& operator=(const StateChange&) = delete;
  ~StateChange() {
    if (group_.state() != before_) LogState(group_, options_, now_, after_);
  }

 private:
  const Group& group_;
  const GroupOptions& options_;
  const absl::Time now_;
  AfterUnlock& after_;
  const GroupState before_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(Options options) {
  const GroupOptions& group = options.group;
  if (group.job.empty()) return absl::InvalidArgumentError("the job's name is empty");
  if (group.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the world size is ", group.world_size, ", expected at least 1"));
  }
  for (const absl::Status& status :
       {CheckPositive(group.join_timeout, "join timeout"),
        CheckPositive(group.liveness.lease, "lease"),
        CheckPositive(group.liveness.session_grace, "grace for broken sessions"),
        CheckPositive(group.attribution_grace, "grace for the attribution of failures"),
        CheckPositive(options.longest_step, "longest step of time")}) {
    if (!status.ok()) return status;
  }
  if (group.resume_grace < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator's grace for ranks that come back is ",
                     absl::FormatDuration(group.resume_grace), ", expected at least 0"));
  }
  options.group.liveness.lease = LeaseFor(group.liveness.lease, group.world_size);
  if (group.epoch == 0) options.group.epoch = absl::ToUnixMillis(absl::Now());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(options)));
}

absl::StatusOr<JoinReply> Coordinator::Join(const JoinRequest& request) {
  const absl::Status valid =
      CheckJoinRequest(request, options_.group.job, options_.group.world_size);
  if (!valid.ok()) return valid;
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  if (!shutdown_.ok()) return shutdown_;
  if (groups_.count(request.optimizer) == 0 && groups_.size() >= kMaxOptimizers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", request.rank, " wants to join optimizer \"", request.optimizer,
                     "\": this job has ", groups_.size(),
                     " optimizers already, the most there may "
                     "be"));
  }
  if (groups_.count(request.optimizer) == 0 && request.spec_digest.has_value()) {
    if (std::exchange(awaited_, request.optimizer) != request.optimizer) first_spec_ = Agreement();
    return first_spec_.AskForSpec(now);
  }
  GroupLives& lives =
      groups_.try_emplace(request.optimizer, request.optimizer, options_.group).first->second;
  const Group& before = lives.present();
  absl::StatusOr<JoinReply> reply;
  {
    const StateChange change(before, options_.group, now, after);
    reply = lives.Join(request, now);
  }
  if (&lives.present() != &before) LogState(lives.present(), options_.group, now, after);
  after.Take(lives);
  return reply;
}

absl::StatusOr<Group*> Coordinator::Admit(const Caller& caller) const {
  if (!shutdown_.ok()) return shutdown_;
  const MemberId& member = caller.member;
  if (member.job != options_.group.job) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", member.rank, " belongs to job \"",
                                                   member.job, "\", this coordinator serves job \"",
                                                   options_.group.job, "\""));
  }
  const auto lives = groups_.find(member.optimizer);
  if (lives == groups_.end()) {
    return errors::WithContext(errors::StaleIncarnation(member.rank, member.incarnation, 0),
                               absl::StrCat("nobody has joined optimizer \"", member.optimizer,
                                            "\" at this coordinator; it may have been restarted"));
  }
  absl::StatusOr<Group*> group = lives->second.Find(member);
  if (!group.ok() || caller.generation == 0) return group;
  absl::Status generation = (*group)->CheckGeneration(caller.generation);
  if (!generation.ok()) return generation;
  return group;
}

absl::StatusOr<WatchId> Coordinator::OpenWatch(const Caller& caller, std::function<void()> wake) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) return group.status();
  const WatchId watch = (*group)->OpenWatch(caller.member.rank, std::move(wake), now);
  after.Take(**group);
  return watch;
}

void Coordinator::CloseWatch(const Caller& caller, WatchId watch) {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) return;
  const LivenessOptions& liveness = options_.group.liveness;
  const bool after_pause = now - time_.last_long_pause() < liveness.lease;
  (*group)->CloseWatch(caller.member.rank, watch,
                       after_pause ? liveness.lease : liveness.session_grace, now);
}

absl::StatusOr<WatchEvents> Coordinator::ReadEvents(const Caller& caller, WatchId watch,
                                                    uint64_t after_sequence) const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) return group.status();
  return (*group)->ReadEvents(caller.member.rank, watch, after_sequence);
}

absl::StatusOr<Coordinator::Answer> Coordinator::Heartbeat(const Caller& caller,
                                                           const StepProgress& progress) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) {
    const std::string& optimizer = caller.member.optimizer;
    // Names are a peer's: no more of them than there can be optimizers.
    const bool is_unknown = errors::IsStaleIncarnation(group.status()) &&
                            groups_.count(optimizer) == 0 && unknown_.size() < kMaxOptimizers;
    if (is_unknown && unknown_.insert(optimizer).second) LogUnknown(caller.member, after);
    return group.status();
  }
  {
    const StateChange change(**group, options_.group, now, after);
    (*group)->Heartbeat(caller.member.rank, progress, now);
  }
  after.Take(**group);
  return Answer{(*group)->failure()};
}

absl::StatusOr<Coordinator::Answer> Coordinator::ReportFailure(const Caller& caller,
                                                               const StepProgress& progress,
                                                               Rank suspect,
                                                               const absl::Status& observed) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) return group.status();
  absl::Status status = (*group)->CheckGeneration(caller.generation);
  if (status.ok()) {
    const StateChange change(**group, options_.group, now, after);
    status = (*group)->ReportFailure(caller.member.rank, progress, suspect, observed, now);
  }
  after.Take(**group);
  if (!status.ok()) return status;
  return Answer{(*group)->failure()};
}

absl::Status Coordinator::Leave(const Caller& caller, const StepProgress& progress) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) {
    const auto lives = groups_.find(caller.member.optimizer);
    const bool again = lives != groups_.end() && caller.member.job == options_.group.job &&
                       lives->second.LeftWhileForming(caller.member);
    return again && shutdown_.ok() ? absl::OkStatus() : group.status();
  }
  {
    const StateChange change(**group, options_.group, now, after);
    (*group)->Leave(caller.member.rank, progress, now);
  }
  after.Take(**group);
  return absl::OkStatus();
}

absl::Status Coordinator::PutRendezvous(const Caller& caller, absl::string_view key,
                                        absl::string_view value) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) return group.status();
  absl::Status status = (*group)->CheckGeneration(caller.generation);
  if (status.ok()) status = (*group)->PutRendezvous(caller.member.rank, key, value, now);
  after.Take(**group);
  return status;
}

void Coordinator::GetRendezvous(const Caller& caller, absl::string_view key, absl::Duration wait,
                                RendezvousStore::GetCallback callback) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  absl::Status status = group.status();
  if (status.ok()) status = (*group)->CheckGeneration(caller.generation);
  if (!status.ok()) {
    after.Add([callback = std::move(callback), status] { callback(status); });
    return;
  }
  (*group)->GetRendezvous(key, now + wait, std::move(callback));
  after.Take(**group);
}

absl::StatusOr<const Group*> Coordinator::Find(absl::string_view optimizer) const {
  const auto lives = groups_.find(std::string(optimizer));
  if (lives != groups_.end()) return &lives->second.present();
  return absl::NotFoundError(absl::StrCat("nobody has joined an optimizer \"", optimizer,
                                          "\" of job \"", options_.group.job,
                                          "\"; check the name"));
}

void Coordinator::ProposeGrowth(const Caller& caller, const GrowthProposal& proposal,
                                absl::Duration wait, GrowthRounds::Callback callback) {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const absl::StatusOr<Group*> group = Admit(caller);
  if (!group.ok()) {
    after.Add([callback = std::move(callback), status = group.status()] { callback(status); });
    return;
  }
  const Generation before = (*group)->generation();
  (*group)->ProposeGrowth(caller.member.rank, caller.generation, proposal, now + wait,
                          std::move(callback), now);
  if ((*group)->generation() != before) LogState(**group, options_.group, now, after);
  after.Take(**group);
}

absl::StatusOr<OwnerPage> Coordinator::GetOwners(absl::string_view optimizer, Rank first) const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<const Group*> group = Find(optimizer);
  if (!group.ok()) return group.status();
  return (*group)->Owners(first);
}

absl::StatusOr<OptimizerPlan> Coordinator::GetPlan(absl::string_view optimizer) const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<const Group*> group = Find(optimizer);
  if (!group.ok()) return group.status();
  return (*group)->PlanOf();
}

std::vector<std::string> Coordinator::OptimizerNames() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& entry : groups_) names.push_back(entry.first);
  return names;
}

JobStatus Coordinator::GetStatus(absl::string_view optimizer) const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = time_.At(options_.clock->Now());
  JobStatus status;
  status.job = options_.group.job;
  for (const auto& [name, lives] : groups_) {
    if (!optimizer.empty() && optimizer != name) continue;
    status.groups.push_back(lives.present().Status(now));
  }
  return status;
}

void Coordinator::Tick() {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = Now();
  if (!shutdown_.ok()) return;
  for (auto& [name, lives] : groups_) {
    {
      const StateChange change(lives.present(), options_.group, now, after);
      lives.Tick(now);
    }
    after.Take(lives);
  }
}

void Coordinator::Shutdown() {
  AfterUnlock after;
  absl::MutexLock lock(&mutex_);
  if (!shutdown_.ok()) return;
  shutdown_ = absl::UnavailableError(
      absl::StrCat("the coordinator of job \"", options_.group.job, "\" is shutting down"));
  for (auto& [name, lives] : groups_) {
    lives.Shutdown(shutdown_);
    after.Take(lives);
  }
}

bool Coordinator::Done() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = time_.At(options_.clock->Now());
  return !groups_.empty() &&
         absl::c_all_of(groups_, [now](const auto& entry) { return entry.second.Done(now); });
}

}  // namespace optshard
