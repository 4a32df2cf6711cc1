#include "tests/testing/local_coordinator.h"

#include <atomic>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/membership/member_inbox.h"

namespace optshard {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(5);

absl::Duration Until(absl::Time deadline) { return deadline - Clock::Monotonic().Now(); }

}  // namespace

// Calls what answers by a callback, and waits for the answer.
template <typename T>
absl::StatusOr<T> AnswerOf(
    const std::function<void(std::function<void(absl::StatusOr<T>)>)>& call) {
  struct Answer {
    absl::Mutex mutex;
    bool here ABSL_GUARDED_BY(mutex) = false;
    absl::StatusOr<T> value ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  call([answer](absl::StatusOr<T> value) {
    absl::MutexLock lock(&answer->mutex);
    answer->value = std::move(value);
    answer->here = true;
  });
  absl::MutexLock lock(&answer->mutex);
  answer->mutex.Await(absl::Condition(&answer->here));
  return answer->value;
}

// What a session shares with the coordinator's thread, which may outlive it.
class LocalMember {
 public:
  LocalMember(Coordinator& domain, MemberId id) : domain_(domain), id_(std::move(id)) {}

  static absl::Status Connect(const std::shared_ptr<LocalMember>& member) {
    const std::weak_ptr<LocalMember> weak = member;
    const absl::StatusOr<WatchId> watch = member->domain_.OpenWatch(member->caller(), [weak] {
      if (const std::shared_ptr<LocalMember> woken = weak.lock()) woken->Pump();
    });
    if (!watch.ok()) return watch.status();
    {
      absl::MutexLock lock(&member->mutex_);
      member->watch_ = *watch;
    }
    member->Pump();
    return absl::OkStatus();
  }

  void Disconnect() {
    WatchId watch;
    {
      absl::MutexLock lock(&mutex_);
      watch = std::exchange(watch_, 0);
    }
    if (watch != 0) domain_.CloseWatch(caller(), watch);
  }

  void Silence() { silent_ = true; }
  bool silent() const { return silent_; }

  void Beat() {
    if (silent_) return;
    // The failure it may answer with comes as an event too, unless the group has gone on without
    // us.
    const absl::Status status = domain_.Heartbeat(caller(), progress()).status();
    if (errors::IsStaleIncarnation(status) && connected()) inbox_.DeliverFailure(status);
  }

  const MemberId& id() const { return id_; }
  MemberInbox& inbox() { return inbox_; }

  Caller caller() const {
    absl::MutexLock lock(&mutex_);
    return Caller{id_, generation_};
  }
  void set_generation(Generation generation) {
    absl::MutexLock lock(&mutex_);
    generation_ = generation;
  }
  StepProgress progress() const {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }
  void set_progress(const StepProgress& progress) {
    absl::MutexLock lock(&mutex_);
    progress_ = progress;
  }

 private:
  bool connected() const {
    absl::MutexLock lock(&mutex_);
    return watch_ != 0;
  }
  void Pump() {
    WatchId watch;
    {
      absl::MutexLock lock(&mutex_);
      watch = watch_;
    }
    if (watch == 0) return;
    const absl::StatusOr<WatchEvents> events =
        domain_.ReadEvents(caller(), watch, inbox_.last_sequence());
    if (!events.ok()) return;
    for (const MemberEvent& event : events->events) inbox_.Deliver(event);
  }

  Coordinator& domain_;
  const MemberId id_;
  MemberInbox inbox_;
  std::atomic<bool> silent_{false};
  mutable absl::Mutex mutex_;
  WatchId watch_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: cut off
  Generation generation_ ABSL_GUARDED_BY(mutex_) = 0;
  StepProgress progress_ ABSL_GUARDED_BY(mutex_);
};

class LocalSession final : public MemberSession, public Rendezvous {
 public:
  LocalSession(LocalCoordinator* coordinator, std::shared_ptr<LocalMember> member,
               Cancellation* cancellation)
      : coordinator_(coordinator),
        domain_(coordinator->domain()),
        member_(std::move(member)),
        id_(member_->id()),
        cancellation_(cancellation),
        end_wait_(cancellation, [this] { member_->inbox().EndWaitForPlan(); }) {}

  ~LocalSession() override {
    coordinator_->Remove(member_);
    End();
  }

  const MemberId& id() const override { return id_; }

  absl::StatusOr<MemberEvent> WaitForPlan(absl::Time deadline) override {
    absl::optional<absl::StatusOr<MemberEvent>> event =
        member_->inbox().WaitForPlan(Until(deadline));
    if (!event.has_value()) {
      if (cancellation_ != nullptr && !cancellation_->reason().ok()) return cancellation_->reason();
      std::vector<Rank> missing;
      for (const GroupStatus& group : domain_.GetStatus(id_.optimizer).groups) {
        for (const MemberStatus& member : group.members) {
          if (member.state == MemberState::kMissing) missing.push_back(member.rank);
        }
      }
      return errors::PeersTimedOut(missing,
                                   absl::StrCat("joining optimizer \"", id_.optimizer, "\""));
    }
    if (event->ok()) member_->set_generation((*event)->ready->plan.generation);
    return *std::move(event);
  }

  void OnFailure(std::function<void(const absl::Status&)> callback) override {
    member_->inbox().OnFailure(std::move(callback));
  }

  void SetProgress(const StepProgress& progress) override { member_->set_progress(progress); }

  absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                             const absl::Status& observed, absl::Time deadline) override {
    SetProgress(progress);
    if (!member_->silent()) {
      const absl::StatusOr<Coordinator::Answer> news =
          domain_.ReportFailure(member_->caller(), progress, suspect, observed);
      if (!news.ok()) return observed;
      if (!news->failure.ok()) return news->failure;
    }
    return member_->inbox().WaitForFailure(Until(deadline)).value_or(observed);
  }

  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    absl::StatusOr<GrowthAnswer> answer = AnswerOf<GrowthAnswer>([&](auto done) {
      domain_.ProposeGrowth(member_->caller(), proposal, Until(deadline), std::move(done));
    });
    if (absl::IsNotFound(answer.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", id_.rank, " has proposed param groups, and not all ranks have"));
    }
    if (answer.ok() && answer->verdict == GrowthVerdict::kAgreed &&
        proposal.phase == GrowthPhase::kCommit) {
      member_->set_generation(answer->generation);
    }
    return answer;
  }

  Rendezvous& rendezvous() override { return *this; }

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    return domain_.PutRendezvous(member_->caller(), key, value);
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    absl::StatusOr<std::string> answer = AnswerOf<std::string>([&](auto done) {
      domain_.GetRendezvous(member_->caller(), key, Until(deadline), std::move(done));
    });
    if (absl::IsNotFound(answer.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", id_.rank, " waited for rendezvous key \"", key, "\""));
    }
    return answer;
  }

  absl::Status Leave(absl::Time) override {
    absl::Status status = domain_.Leave(member_->caller(), member_->progress());
    coordinator_->Remove(member_);
    End();
    return status;
  }

 private:
  void End() {
    member_->Disconnect();
    member_->inbox().EndCallbacks();
  }

  LocalCoordinator* const coordinator_;
  Coordinator& domain_;
  const std::shared_ptr<LocalMember> member_;
  const MemberId id_;
  Cancellation* const cancellation_;  // may be null
  const Cancellation::Callback end_wait_;
};

Coordinator::Options LocalCoordinator::QuickOptions(int world_size) {
  Coordinator::Options options;
  options.group.world_size = world_size;
  options.group.join_timeout = absl::Seconds(5);
  options.group.liveness.lease = absl::Seconds(1);
  options.group.liveness.session_grace = absl::Milliseconds(20);
  options.group.attribution_grace = absl::Milliseconds(60);
  return options;
}

LocalCoordinator::LocalCoordinator(Coordinator::Options options)
    : domain_(Coordinator::Create(std::move(options)).value()), ticker_([this] { Run(); }) {}

LocalCoordinator::~LocalCoordinator() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  ticker_.join();
  domain_->Shutdown();
}

absl::StatusOr<std::unique_ptr<MemberSession>> LocalCoordinator::Join(const JoinRequest& request,
                                                                      absl::Time,
                                                                      Cancellation* cancellation) {
  const absl::StatusOr<JoinReply> reply = domain_->Join(request);
  if (!reply.ok()) return reply.status();
  const auto member = std::make_shared<LocalMember>(
      *domain_, MemberId{request.job, request.optimizer, request.rank, reply->incarnation});
  const absl::Status connected = LocalMember::Connect(member);
  if (!connected.ok()) return connected;
  {
    absl::MutexLock lock(&mutex_);
    members_.insert(member);
  }
  return std::make_unique<LocalSession>(this, member, cancellation);
}

// Worlds of tests fit into one page.
absl::StatusOr<std::vector<std::string>> LocalCoordinator::GetOwners(const std::string& optimizer,
                                                                     absl::Time) {
  absl::StatusOr<OwnerPage> page = domain_->GetOwners(optimizer, 0);
  if (!page.ok()) return page.status();
  return std::move(page->addresses);
}

absl::StatusOr<JobStatus> LocalCoordinator::GetStatus(absl::Time) { return domain_->GetStatus(""); }

void LocalCoordinator::Kill(Rank rank) {
  for (const std::shared_ptr<LocalMember>& member : Members()) {
    if (member->id().rank != rank) continue;
    member->Silence();
    member->Disconnect();
  }
}

void LocalCoordinator::Stall(Rank rank) {
  for (const std::shared_ptr<LocalMember>& member : Members()) {
    if (member->id().rank == rank) member->Silence();
  }
}

std::set<std::shared_ptr<LocalMember>> LocalCoordinator::Members() {
  absl::MutexLock lock(&mutex_);
  return members_;
}

void LocalCoordinator::Remove(const std::shared_ptr<LocalMember>& member) {
  absl::MutexLock lock(&mutex_);
  members_.erase(member);
}

void LocalCoordinator::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick)) return;
    }
    for (const std::shared_ptr<LocalMember>& member : Members()) member->Beat();
    domain_->Tick();
  }
}

}  // namespace optshard
