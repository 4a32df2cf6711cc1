#include "common/membership/member_session_rpc.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/membership/common_proto.h"
#include "common/membership/coordinator_contact.h"
#include "common/membership/growth_rpc.h"
#include "common/membership/member_inbox.h"
#include "common/membership/membership_rpc.h"
#include "common/membership/retry_pause.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/status_rpc.h"
#include "common/spec_growth.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

// How long one attempt of a call may take that the coordinator answers at once.
constexpr absl::Duration kAttempt = absl::Milliseconds(500);
// Between two attempts, and between two looks at whether the coordinator is gone.
constexpr absl::Duration kPause = absl::Milliseconds(100);
// Before a broken stream is opened again, at first and at most.
constexpr absl::Duration kFirstWatchPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestWatchPause = absl::Seconds(1);
constexpr absl::Duration kRendezvousWait = absl::Seconds(5);
constexpr absl::Duration kGrowthWait = absl::Seconds(5);
// Heartbeats that tell whether a member is in a step: two in a row say so, and one of them may have
// been under way.
constexpr int kBeatsWanted = 2;
constexpr absl::Duration kWantedBeatPause = absl::Milliseconds(200);
constexpr absl::Duration kPutTimeout = absl::Seconds(10);

absl::Time Now() { return Clock::Monotonic().Now(); }

class RpcMemberSession final : public MemberSession, public Rendezvous {
 public:
  RpcMemberSession(std::string address, std::shared_ptr<grpc::Channel> channel, MemberId id,
                   const JoinReply& reply, OptimizerSpec spec, Cancellation* cancellation)
      : address_(std::move(address)),
        stub_(v1::Coordinator::NewStub(std::move(channel))),
        id_(std::move(id)),
        reply_(reply),
        spec_(std::move(spec)),
        contact_(reply.lease, Now()),
        cancellation_(cancellation),
        end_wait_(cancellation, [this] { inbox_.EndWaitForPlan(); }),
        watcher_([this] { WatchEvents(); }),
        heart_([this] { KeepLease(); }) {}

  // The channel closes with the object: to the coordinator, a death, unless Leave came first.
  ~RpcMemberSession() override { StopThreads(); }

  const MemberId& id() const override { return id_; }

  absl::StatusOr<MemberEvent> WaitForPlan(absl::Time deadline) override {
    while (true) {
      const absl::Duration left = deadline - Now();
      absl::optional<absl::StatusOr<MemberEvent>> event =
          inbox_.WaitForPlan(std::clamp(left, absl::ZeroDuration(), kPause));
      if (event.has_value()) return *std::move(event);
      if (cancellation_ != nullptr && !cancellation_->reason().ok()) return cancellation_->reason();
      if (contact_.Gone(Now())) return CoordinatorGone("waited for all ranks to join");
      if (left <= absl::ZeroDuration()) return NotAllJoined();
    }
  }

  void OnFailure(std::function<void(const absl::Status&)> callback) override {
    inbox_.OnFailure(std::move(callback));
  }

  void SetProgress(const StepProgress& progress) override {
    absl::MutexLock lock(&mutex_);
    progress_ = progress;
  }

  absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                             const absl::Status& observed, absl::Time deadline) override {
    SetProgress(progress);
    v1::ReportFailureRequest request;
    *request.mutable_header() = Header();
    *request.mutable_progress() = ToProto(progress);
    request.set_suspect_rank(suspect);
    *request.mutable_observed() = ToProto(observed);
    // Each attempt also asks whether the failure has been attributed: the stream that should bring
    // it may be what is broken.
    while (true) {
      const absl::Duration left = deadline - Now();
      if (left <= absl::ZeroDuration()) return observed;
      v1::ReportFailureResponse response;
      const absl::Status status =
          Call(&v1::Coordinator::Stub::ReportFailure, request, response, std::min(left, kAttempt));
      if (status.ok() && response.has_failure()) return FromProto(response.failure());
      if (!status.ok() && !IsTransportError(status)) {
        Log(LogLevel::kWarning, log_, "the coordinator takes no report of \"%s\": %s",
            observed.message(), status.message());
        return observed;
      }
      if (contact_.Gone(Now())) {
        const bool hosted_elsewhere = reply_.host_rank >= 0 && reply_.host_rank != id_.rank;
        return hosted_elsewhere ? CoordinatorGone("asked for the cause of a failure") : observed;
      }
      const absl::optional<absl::Status> failure =
          inbox_.WaitForFailure(std::clamp(deadline - Now(), absl::ZeroDuration(), kPause));
      if (failure.has_value()) return *failure;
    }
  }

  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    // As with a join, the spec travels when it is asked for.
    GrowthProposal with_digest = proposal;
    with_digest.spec_digest = GrowthDigest(proposal.spec);
    v1::ProposeGrowthRequest request = ToProto(with_digest);
    while (true) {
      const absl::Duration left = deadline - Now();
      if (!inbox_.failure().ok()) return inbox_.failure();
      if (cancellation_ != nullptr && !cancellation_->reason().ok()) return cancellation_->reason();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", id_.rank, " has proposed param groups to the coordinator at ",
                         address_, ", which has not said in time whether all ranks have"));
      }
      const absl::Duration wait = std::min(left, kGrowthWait);
      *request.mutable_header() = Header();
      request.set_wait_ms(std::max<int64_t>(absl::ToInt64Milliseconds(wait), 1));
      request.set_patience_ms(absl::ToInt64Milliseconds(std::min(left, proposal.patience)));
      v1::ProposeGrowthResponse response;
      const absl::Status status =
          Call(&v1::Coordinator::Stub::ProposeGrowth, request, response, wait + absl::Seconds(1));
      if (absl::IsNotFound(status)) continue;
      if (!status.ok()) {
        if (!IsTransportError(status)) return status;
        if (contact_.Gone(Now()) || WaitForStop(kPause)) {
          return CoordinatorGone("proposed param groups");
        }
        continue;
      }
      absl::StatusOr<GrowthAnswer> answer = FromProto(response);
      if (!answer.ok()) return answer;
      if (answer->verdict == GrowthVerdict::kSendSpec) {
        request = ToProto(proposal);
        continue;
      }
      if (answer->verdict == GrowthVerdict::kAskAgain) {
        if (WaitForStop(kFirstWatchPause)) return absl::CancelledError("the session ends");
        continue;
      }
      if (answer->verdict == GrowthVerdict::kAgreed) {
        absl::MutexLock lock(&mutex_);
        if (answer->generation != generation_ + 1) {
          return absl::InternalError(
              absl::StrCat("the coordinator at ", address_, " has all ranks agree to generation ",
                           answer->generation, ", expected ", generation_ + 1,
                           "; run the same version of optshard everywhere"));
        }
        if (proposal.phase == GrowthPhase::kCommit) generation_ = answer->generation;
      }
      return answer;
    }
  }

  Rendezvous& rendezvous() override { return *this; }

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    v1::PutRendezvousRequest request;
    *request.mutable_header() = Header();
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    const absl::Time deadline = Now() + kPutTimeout;
    while (true) {
      v1::PutRendezvousResponse response;
      absl::Status status =
          Call(&v1::Coordinator::Stub::PutRendezvous, request, response, kAttempt);
      if (status.ok() || !IsTransportError(status)) return status;
      if (!inbox_.failure().ok()) return inbox_.failure();
      if (Now() >= deadline || contact_.Gone(Now()) || WaitForStop(kPause)) {
        return CoordinatorGone(absl::StrCat("put rendezvous key \"", key, "\""));
      }
    }
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    v1::GetRendezvousRequest request;
    *request.mutable_header() = Header();
    request.set_key(std::string(key));
    while (true) {
      const absl::Duration left = deadline - Now();
      if (!inbox_.failure().ok()) return inbox_.failure();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", id_.rank, " waited for rendezvous key \"", key,
                         "\", which the rank that has to write it has not written"));
      }
      const absl::Duration wait = std::min(left, kRendezvousWait);
      request.set_wait_ms(std::max<int64_t>(absl::ToInt64Milliseconds(wait), 1));
      v1::GetRendezvousResponse response;
      const absl::Status status =
          Call(&v1::Coordinator::Stub::GetRendezvous, request, response, wait + absl::Seconds(1));
      if (status.ok()) return std::move(*response.mutable_value());
      if (absl::IsNotFound(status)) continue;
      if (!IsTransportError(status)) return status;
      if (contact_.Gone(Now()) || WaitForStop(kPause)) {
        return CoordinatorGone(absl::StrCat("waited for rendezvous key \"", key, "\""));
      }
    }
  }

  absl::Status Leave(absl::Time deadline) override {
    absl::MutexLock leave(&leave_mutex_);
    if (left_.has_value()) return *left_;
    leaving_ = true;
    v1::LeaveRequest request;
    *request.mutable_header() = Header();
    *request.mutable_progress() = ToProto(progress());
    absl::Status status;
    do {
      v1::LeaveResponse response;
      status = Call(&v1::Coordinator::Stub::Leave, request, response,
                    std::clamp(deadline - Now(), absl::ZeroDuration(), kAttempt));
      if (!IsTransportError(status)) break;
      status = CoordinatorGone("wanted to leave");
    } while (Now() < deadline && !contact_.Gone(Now()) && !WaitForStop(kPause));
    StopThreads();
    left_ = status;
    return status;
  }

 private:
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                    const Request& request, Response& response, absl::Duration timeout) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(timeout));
    {
      absl::MutexLock lock(&mutex_);
      calls_.insert(&context);
      if (stopping_) context.TryCancel();
    }
    absl::Status status = FromGrpc((stub_.get()->*method)(&context, request, &response));
    bool stopping;
    {
      absl::MutexLock lock(&mutex_);
      calls_.erase(&context);
      stopping = stopping_;
    }
    if (!stopping) Note(status);
    return status;
  }

  // Keeps account of whether the coordinator is there.
  void Note(const absl::Status& status) {
    if (!IsTransportError(status)) {
      contact_.Answered(Now());
    } else if (contact_.Failed(absl::IsUnavailable(status), Now())) {
      Log(LogLevel::kWarning, log_,
          "the coordinator at %s does not answer (%s): steps go on, but the loss of a rank would "
          "not be told; trying again",
          address_, status.message());
    }
  }

  void WatchEvents() {
    RetryPause pause(kFirstWatchPause, kLongestWatchPause);
    while (true) {
      grpc::ClientContext context;
      {
        absl::MutexLock lock(&mutex_);
        if (stopping_) return;
        calls_.insert(&context);
      }
      const absl::Status status = ReadStream(context, pause);
      {
        absl::MutexLock lock(&mutex_);
        calls_.erase(&context);
        if (stopping_) return;
      }
      // The coordinator ends the stream after a failure, and after Leave.
      if (status.ok() || !inbox_.failure().ok()) return;
      Note(status);
      if (!IsTransportError(status)) {
        Log(LogLevel::kWarning, log_, "the coordinator at %s sends no more events: %s", address_,
            status.message());
        return;
      }
      if (WaitForStop(pause.Next())) return;
    }
  }

  // A stream that opens resets `pause`: its break is another trouble than the one before.
  absl::Status ReadStream(grpc::ClientContext& context, RetryPause& pause) {
    v1::WatchRequest request;
    *request.mutable_header() = Header();
    request.set_after_sequence(inbox_.last_sequence());
    const std::unique_ptr<grpc::ClientReader<v1::WatchEvent>> reader =
        stub_->Watch(&context, request);
    v1::WatchEvent message;
    while (reader->Read(&message)) {
      contact_.Answered(Now());
      pause.Reset();
      if (message.has_stream_opened()) continue;
      absl::StatusOr<MemberEvent> event = FromProto(message, spec_);
      if (!event.ok()) {
        inbox_.DeliverFailure(event.status());
        context.TryCancel();
        break;
      }
      if (event->kind == MemberEvent::Kind::kPlanReady) {
        absl::MutexLock lock(&mutex_);
        generation_ = event->ready->plan.generation;
      }
      if (event->kind == MemberEvent::Kind::kProgressWanted) {
        absl::MutexLock lock(&mutex_);
        beats_wanted_ = kBeatsWanted;
      }
      inbox_.Deliver(*event);
    }
    return FromGrpc(reader->Finish());
  }

  void KeepLease() {
    bool answered = true;
    // Sooner after a failure, so that a coordinator that is back hears of us.
    while (!WaitForBeat(answered ? reply_.heartbeat_period
                                 : std::min(reply_.heartbeat_period, 2 * kPause))) {
      v1::HeartbeatRequest request;
      *request.mutable_header() = Header();
      *request.mutable_progress() = ToProto(progress());
      v1::HeartbeatResponse response;
      const absl::Status status =
          Call(&v1::Coordinator::Stub::Heartbeat, request, response, reply_.lease / 2);
      answered = status.ok();
      if (status.ok() && response.has_failure()) {
        inbox_.DeliverFailure(FromProto(response.failure()));
      }
      if (status.ok() || IsTransportError(status)) continue;
      Log(LogLevel::kWarning, log_, "the coordinator at %s keeps no lease for us any more: %s",
          address_, status.message());
      const bool stale = errors::IsStaleIncarnation(status) || errors::IsStaleGeneration(status);
      if (stale && !leaving_) AwaitSuccessor(status);
      return;
    }
  }

  // The coordinator does not know us. It may only have been started again: steps go on until it has
  // a group without us.
  void AwaitSuccessor(const absl::Status& stale) {
    v1::GetStatusRequest request;
    request.set_optimizer(id_.optimizer);
    do {
      v1::JobStatus response;
      const absl::Status status =
          Call(&v1::Coordinator::Stub::GetStatus, request, response, reply_.lease / 2);
      if (status.ok() && response.groups_size() > 0) {
        inbox_.DeliverFailure(errors::WithContext(stale, "the job has a group without us"));
        return;
      }
    } while (!WaitForStop(reply_.heartbeat_period));
  }

  // PeerLost of the rank that hosts the coordinator where one does.
  absl::Status CoordinatorGone(absl::string_view doing) const {
    const std::string what = absl::StrCat("the coordinator at ", address_,
                                          " does not answer any more; rank ", id_.rank, " ", doing);
    if (reply_.host_rank >= 0 && reply_.host_rank != id_.rank) {
      return errors::PeerLost(reply_.host_rank,
                              absl::StrCat("it hosts the coordinator, and ", what));
    }
    return absl::UnavailableError(what);
  }

  absl::Status NotAllJoined() {
    v1::GetStatusRequest request;
    request.set_optimizer(id_.optimizer);
    v1::JobStatus response;
    const absl::Status status =
        Call(&v1::Coordinator::Stub::GetStatus, request, response, absl::Seconds(1));
    if (!status.ok()) return CoordinatorGone("waited for all ranks to join");
    std::vector<Rank> missing;
    for (const v1::GroupStatus& group : response.groups()) {
      for (const v1::MemberStatus& member : group.members()) {
        if (member.state() == v1::MEMBER_STATE_MISSING) missing.push_back(member.rank());
      }
    }
    return errors::PeersTimedOut(missing, absl::StrCat("joining optimizer \"", id_.optimizer,
                                                       "\" of job \"", id_.job, "\""));
  }

  v1::CallHeader Header() const {
    absl::MutexLock lock(&mutex_);
    return MakeHeader(id_, generation_, "");
  }

  StepProgress progress() const {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }

  // Whether the session stops within `timeout`.
  bool WaitForStop(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&stopping_), timeout);
  }

  // Before the next heartbeat; true where there is none any more.
  bool WaitForBeat(absl::Duration period) {
    absl::MutexLock lock(&mutex_);
    const auto now = [this] {
      mutex_.AssertReaderHeld();
      return stopping_ || beats_wanted_ == kBeatsWanted;
    };
    const absl::Duration pause = beats_wanted_ > 0 ? std::min(period, kWantedBeatPause) : period;
    mutex_.AwaitWithTimeout(absl::Condition(&now), pause);
    if (beats_wanted_ > 0) --beats_wanted_;
    return stopping_;
  }

  void StopThreads() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      for (grpc::ClientContext* call : calls_) call->TryCancel();
    }
    if (watcher_.joinable()) watcher_.join();
    if (heart_.joinable()) heart_.join();
  }

  const std::string address_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  const MemberId id_;
  const JoinReply reply_;
  const OptimizerSpec spec_;
  const LogContext log_ = {"client", id_.job, id_.rank, 0, 0};
  CoordinatorContact contact_;
  MemberInbox inbox_;
  Cancellation* const cancellation_;  // may be null
  const Cancellation::Callback end_wait_;

  mutable absl::Mutex mutex_;
  StepProgress progress_ ABSL_GUARDED_BY(mutex_);
  Generation generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);  // under way
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int beats_wanted_ ABSL_GUARDED_BY(mutex_) = 0;  // sooner than the period has them

  std::atomic<bool> leaving_{false};
  absl::Mutex leave_mutex_;
  absl::optional<absl::Status> left_ ABSL_GUARDED_BY(leave_mutex_);

  // Last: they use all of the above.
  std::thread watcher_;
  std::thread heart_;
};

}  // namespace

std::unique_ptr<MemberSession> StartMemberSession(std::string address,
                                                  std::shared_ptr<grpc::Channel> channel,
                                                  MemberId id, const JoinReply& reply,
                                                  OptimizerSpec spec, Cancellation* cancellation) {
  return std::make_unique<RpcMemberSession>(std::move(address), std::move(channel), std::move(id),
                                            reply, std::move(spec), cancellation);
}

}  // namespace optshard
