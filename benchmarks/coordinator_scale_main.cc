// Simulated members of a large job, all in this process, against a real coordinator over gRPC. Each
// has a connection of its own, as a real one has, its event stream and its heartbeats; but no
// thread, and the plan is made once for all of them. run_bench.py drives it: the first round joins
// all ranks but one, the second one joins the last and waits until all have the plan.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/membership/common_proto.h"
#include "common/membership/membership_rpc.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

// Ranks that join at the same time.
constexpr int kJoiners = 64;
constexpr absl::Duration kAskAgain = absl::Milliseconds(20);
// Of heartbeats, while nothing else happens.
constexpr int kPeriods = 3;
constexpr absl::Duration kShortestWatch = absl::Seconds(10);
// For all ranks to join, or to have the plan. Less than the time that run_bench.py allows a round.
constexpr absl::Duration kPatience = absl::Seconds(240);

struct Flags {
  std::string coordinator;
  std::string job = "benchmark";
  int world_size = 1000;
  int parameters = 100;
  int ranks_per_node = 8;
};

absl::Time Now() { return Clock::Monotonic().Now(); }

OptimizerSpec SpecOf(const Flags& flags) {
  GroupSpec group;
  for (int i = 0; i < flags.parameters; ++i) {
    ParameterSpec parameter;
    parameter.name = absl::StrCat("model.layers.", i, ".attention.weight");
    parameter.shape = {1024, 64 + i % 7};
    group.parameters.push_back(std::move(parameter));
  }
  OptimizerSpec spec;
  spec.world_size = flags.world_size;
  spec.space = ParameterSpace({std::move(group)});
  spec.rules = {{"adam"}};
  return spec;
}

// What the members have seen. Thread-safe.
class Record {
 public:
  explicit Record(OptimizerSpec spec)
      : spec_(std::move(spec)), joined_(spec_.world_size), plans_(spec_.world_size) {}

  const OptimizerSpec& spec() const { return spec_; }

  void Fail(const std::string& what) {
    absl::MutexLock lock(&mutex_);
    if (failure_.empty()) failure_ = what;
  }

  void Joined(Rank rank) {
    absl::MutexLock lock(&mutex_);
    joined_.MarkThat(rank);
  }

  // The first member makes the plan. The others, each of which would make it on a host of its own,
  // compare digests.
  void GotPlan(Rank rank, const v1::WatchEvent& message) {
    absl::MutexLock lock(&mutex_);
    if (plans_.count() == 0) {
      const absl::StatusOr<MemberEvent> event = FromProto(message, spec_);
      if (!event.ok()) failure_ = event.status().ToString();
      first_ = message.plan_ready().SerializeAsString();
      bytes_ = message.ByteSizeLong();
    }
    if (message.plan_ready().SerializeAsString() != first_) failure_ = "two members' plans differ";
    plans_.MarkThat(rank);
  }

  void Beat(absl::Duration took) {
    absl::MutexLock lock(&mutex_);
    beats_.push_back(took);
  }

  // How long those took that were answered since the last call, in order.
  std::vector<absl::Duration> TakeBeats() {
    absl::MutexLock lock(&mutex_);
    std::vector<absl::Duration> beats = std::exchange(beats_, {});
    std::sort(beats.begin(), beats.end());
    return beats;
  }

  double plan_bytes() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<double>(bytes_);
  }

  // Throws where a member has failed, or where fewer are there in time: then it names the first one
  // that is not.
  void WaitForJoined(int count) { WaitFor(count, &Record::joined_, "joined"); }
  void WaitForPlans(int count) { WaitFor(count, &Record::plans_, "got the plan"); }
  void CheckNoneFailed() const {
    absl::MutexLock lock(&mutex_);
    Check();
  }

 private:
  // Of which ranks something is true.
  class Ranks {
   public:
    explicit Ranks(int world_size) : is_true_(world_size) {}
    void MarkThat(Rank rank) {
      if (!is_true_[rank]) ++count_;
      is_true_[rank] = true;
    }
    int count() const { return count_; }
    Rank first_other() const {
      return static_cast<Rank>(std::find(is_true_.begin(), is_true_.end(), false) -
                               is_true_.begin());
    }

   private:
    std::vector<bool> is_true_;
    int count_ = 0;
  };

  void WaitFor(int count, Ranks Record::*which, const char* what) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const Ranks& ranks = this->*which;
    const auto there = [this, count, &ranks]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return ranks.count() >= count || !failure_.empty();
    };
    const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience);
    Check();
    if (in_time) return;
    throw std::runtime_error(absl::StrCat(ranks.count(), " of ", count, " ranks have ", what,
                                          " after ", absl::FormatDuration(kPatience), "; rank ",
                                          ranks.first_other(), " has not"));
  }
  void Check() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  const OptimizerSpec spec_;
  mutable absl::Mutex mutex_;
  std::string failure_ ABSL_GUARDED_BY(mutex_);
  Ranks joined_ ABSL_GUARDED_BY(mutex_);
  Ranks plans_ ABSL_GUARDED_BY(mutex_);
  std::string first_ ABSL_GUARDED_BY(mutex_);  // plan that came
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // of its message
  std::vector<absl::Duration> beats_ ABSL_GUARDED_BY(mutex_);
};

// Runs functions when their time has come, in one thread, until the process ends. Thread-safe.
class Timer {
 public:
  Timer() { std::thread(&Timer::Run, this).detach(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void At(absl::Time when, std::function<void()> what) {
    absl::MutexLock lock(&mutex_);
    due_.emplace(when, std::move(what));
    changed_.Signal();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> what;
      {
        absl::MutexLock lock(&mutex_);
        const absl::Duration left =
            due_.empty() ? absl::InfiniteDuration() : due_.begin()->first - Now();
        if (left > absl::ZeroDuration()) {
          changed_.WaitWithTimeout(&mutex_, left);
          continue;
        }
        what = std::move(due_.begin()->second);
        due_.erase(due_.begin());
      }
      what();
    }
  }

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::multimap<absl::Time, std::function<void()>> due_ ABSL_GUARDED_BY(mutex_);
};

// One rank. Its calls follow each other, so that it needs no lock. Lives as long as the process.
class SimulatedMember final : public grpc::ClientReadReactor<v1::WatchEvent> {
 public:
  SimulatedMember(const Flags& flags, Rank rank, uint64_t digest, Record* record, Timer* timer)
      : record_(record), timer_(timer) {
    stub_ = v1::Coordinator::NewStub(MakeChannel(flags.coordinator));
    request_.job = flags.job;
    request_.optimizer = "default";
    request_.rank = rank;
    request_.request_id = absl::StrCat("simulated-", rank);
    request_.spec.world_size = flags.world_size;
    request_.spec_digest = digest;
    request_.node = absl::StrCat("node-", rank / flags.ranks_per_node);
    request_.owner_address =
        absl::StrCat("10.", rank >> 16, ".", (rank >> 8) & 255, ".", rank & 255, ":4700");
    request_.pid = 1000 + rank;
  }

  void Join() {
    join_ = std::make_unique<JoinCall>();
    join_->request = ToProto(request_);
    if (with_spec_) *join_->request.mutable_spec() = ToProto(record_->spec());
    join_->context.set_wait_for_ready(true);
    stub_->async()->Join(&join_->context, &join_->request, &join_->response,
                         [this](const grpc::Status& status) { Answered(status); });
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (event_.has_plan_ready()) {
      generation_ = event_.plan_ready().generation();
      record_->GotPlan(request_.rank, event_);
    } else if (event_.has_group_failed()) {
      record_->Fail(FromProto(event_.group_failed().failure()).ToString());
    }
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override { FailWith("its stream", status); }

  // Once it has joined.
  absl::Duration period() const { return period_; }

 private:
  struct JoinCall {
    grpc::ClientContext context;
    v1::JoinRequest request;
    v1::JoinResponse response;
  };
  struct BeatCall {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    v1::HeartbeatResponse response;
    absl::Time sent;
  };

  void FailWith(const char* what, const grpc::Status& status) {
    record_->Fail(
        absl::StrCat("rank ", request_.rank, ", ", what, ": ", FromGrpc(status).ToString()));
  }

  void Answered(const grpc::Status& status) {
    if (!status.ok()) return FailWith("joining", status);
    const absl::StatusOr<JoinReply> reply = FromProto(join_->response);
    if (!reply.ok()) return record_->Fail(reply.status().ToString());
    if (reply->answer != JoinAnswer::kAdmitted) {
      with_spec_ = reply->answer == JoinAnswer::kSendSpec;
      timer_->At(with_spec_ ? Now() : Now() + kAskAgain, [this] { Join(); });
      return;
    }
    join_.reset();
    member_ = {request_.job, request_.optimizer, request_.rank, reply->incarnation};
    period_ = reply->heartbeat_period;
    *watch_.mutable_header() = MakeHeader(member_, 0, "");
    stub_->async()->Watch(&watch_context_, &watch_, this);
    StartRead(&event_);
    StartCall();
    timer_->At(Now() + period_, [this] { Beat(); });
    record_->Joined(request_.rank);
  }

  void Beat() {
    beat_ = std::make_unique<BeatCall>();
    *beat_->request.mutable_header() = MakeHeader(member_, generation_, "");
    *beat_->request.mutable_progress() = ToProto(StepProgress());
    beat_->sent = Now();
    stub_->async()->Heartbeat(&beat_->context, &beat_->request, &beat_->response,
                              [this](const grpc::Status& status) { Beaten(status); });
  }

  void Beaten(const grpc::Status& status) {
    if (!status.ok()) return FailWith("its heartbeat", status);
    record_->Beat(Now() - beat_->sent);
    timer_->At(beat_->sent + period_, [this] { Beat(); });
  }

  Record* const record_;
  Timer* const timer_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  JoinRequest request_;
  bool with_spec_ = false;
  std::unique_ptr<JoinCall> join_;
  MemberId member_;
  absl::Duration period_;
  std::atomic<Generation> generation_{0};
  grpc::ClientContext watch_context_;
  v1::WatchRequest watch_;
  v1::WatchEvent event_;
  std::unique_ptr<BeatCall> beat_;
};

// All members. Bound to a thread; lives as long as the process.
class SimulatedJob {
 public:
  explicit SimulatedJob(const Flags& flags) : flags_(flags), record_(SpecOf(flags)) {
    const uint64_t digest = record_.spec().Digest();
    for (Rank rank = 0; rank < flags.world_size; ++rank) {
      members_.push_back(
          std::make_unique<SimulatedMember>(flags_, rank, digest, &record_, &timer_));
    }
  }

  // The next round's work.
  void OneRound() {
    if (rounds_++ == 0) {
      const int all_but_one = flags_.world_size - 1;
      for (Rank rank = 0; rank < all_but_one; ++rank) {
        record_.WaitForJoined(rank - kJoiners);
        members_[rank]->Join();
      }
      record_.WaitForJoined(all_but_one);
    } else {
      members_.back()->Join();
      record_.WaitForPlans(flags_.world_size);
    }
  }

  // Watches the heartbeats for some time.
  std::map<std::string, double> Check() {
    const std::vector<absl::Duration> while_joining = record_.TakeBeats();
    const absl::Duration period = members_.front()->period();
    std::this_thread::sleep_for(
        absl::ToChronoMilliseconds(std::max(kShortestWatch, kPeriods * period)));
    record_.CheckNoneFailed();
    const std::vector<absl::Duration> beats = record_.TakeBeats();
    if (beats.empty()) throw std::runtime_error("no heartbeat was answered");
    const auto ms = [](absl::Duration time) { return absl::ToDoubleMilliseconds(time); };
    return {
        {"period_ms", ms(period)},
        {"heartbeats", static_cast<double>(beats.size())},
        {"heartbeat_median_ms", ms(beats[beats.size() / 2])},
        {"heartbeat_p99_ms", ms(beats[beats.size() * 99 / 100])},
        {"heartbeat_max_ms", ms(beats.back())},
        {"heartbeat_max_ms_while_joining", while_joining.empty() ? 0 : ms(while_joining.back())},
        {"plan_message_bytes", record_.plan_bytes()}};
  }

 private:
  const Flags flags_;
  Record record_;
  Timer timer_;
  std::vector<std::unique_ptr<SimulatedMember>> members_;
  int rounds_ = 0;
};

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  optshard::CommandLine line(
      {"optshard-bench-coordinator",
       "Simulated members of one job, for a coordinator of its own. run_bench.py drives it.",
       {"optshard-bench-coordinator --coordinator=127.0.0.1:4700 --world-size=1000"}});
  line.Group("Job");
  line.Add("coordinator", &flags.coordinator, "where the coordinator listens")
      .Value("HOST:PORT")
      .Required();
  line.Add("job", &flags.job, "name of the job").Value("NAME");
  line.Add("world-size", &flags.world_size, "how many ranks are simulated").AtLeast(2);
  line.Add("parameters", &flags.parameters, "of the model").AtLeast(1);
  line.Add("ranks-per-node", &flags.ranks_per_node, "how many ranks share a node").AtLeast(1);
  if (const auto end = line.ParseOrEnd(argc, argv)) return *end;
  // As in the coordinator's program.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const int status = optshard::ServeRounds([&flags]() -> optshard::Contestant {
    // Never destroyed: its calls are under way until the process ends.
    auto* const job = new optshard::SimulatedJob(flags);
    return {[job] { job->OneRound(); }, [job] { return job->Check(); }};
  });
  _exit(status);
}
