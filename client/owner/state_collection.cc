#include "client/owner/state_collection.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/control/state_pull_rpc.h"
#include "client/owner/pulled_state.h"
#include "common/byte_share.h"
#include "common/cancellation.h"
#include "common/log.h"

namespace optshard {
namespace {

// How a rank is getting on, as the others are told.
enum class Stage : uint64_t { kDone = 0, kReads = 1, kUnreachable = 2, kFailed = 3 };

// Only to open what nobody is writing.
constexpr absl::Duration kPatience = absl::Seconds(10);
// The ranks tell each other that they are there; an owner that is gone ends the connection.
constexpr absl::Duration kLongest = absl::Hours(24);
// How often in the time-out of the ranks each tells the others how it is getting on: well before
// they would miss it.
constexpr int kReports = 4;

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsUnimplemented(status);
}

// What this rank reads, on two threads of its own.
class Reading {
 public:
  Reading(const CollectionOptions& options, std::vector<StateOwnerAddress> others, bool own)
      : options_(options), others_(std::move(others)), state_(*options.layout) {
    running_ = (own ? 1 : 0) + (others_.empty() ? 0 : 1);
    try {
      if (own) threads_.emplace_back([this] { Ended(ReadOwn()); });
      if (!others_.empty()) threads_.emplace_back([this] { Ended(ReadOthers()); });
    } catch (const std::exception& error) {  // no thread can be made
      End(absl::ResourceExhaustedError(error.what()));
      throw;
    }
  }

  ~Reading() { End(absl::CancelledError("the ranks gave the call up")); }

  // What has come from other owners; more each time that something comes.
  int64_t received() const { return received_; }
  void Cancel(const absl::Status& reason) { cancellation_.Cancel(reason); }

  // Whether it ended within the time.
  bool WaitFor(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](int* running) { return *running == 0; }, &running_),
                                   timeout);
  }

  // Once it has ended.
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || bytes_ == state_.expected_bytes()) return status_;
    return absl::InternalError(absl::StrFormat(
        "the owners have %d bytes of state, expected %d; run the same version of optshard "
        "everywhere",
        bytes_, state_.expected_bytes()));
  }
  PulledState& state() { return state_; }

 private:
  absl::StatusOr<int64_t> ReadOwn() {
    const absl::StatusOr<std::unique_ptr<ShardSnapshot>> snapshot =
        options_.owner->view()->OpenSnapshot(false, kPatience);
    if (!snapshot.ok()) return snapshot.status();
    int64_t bytes = 0;
    for (const ShardSnapshot::Part& part : (*snapshot)->parts()) bytes += part.bytes();
    const absl::Status copied = CopySnapshot(**snapshot, state_);
    if (!copied.ok()) return copied;
    return bytes;
  }

  absl::StatusOr<int64_t> ReadOthers() {
    StatePullOptions pull;
    pull.job = options_.job;
    pull.optimizer = options_.optimizer;
    pull.keep_copies = false;
    pull.timeout = kLongest;
    pull.cancellation = &cancellation_;
    pull.progress = [this](int64_t, int64_t) { ++received_; };
    const absl::StatusOr<PulledStep> pulled = PullState(others_, state_, pull);
    if (!pulled.ok()) return pulled.status();
    return pulled->bytes;
  }

  void End(const absl::Status& reason) {
    cancellation_.Cancel(reason);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void Ended(const absl::StatusOr<int64_t>& bytes) {
    absl::MutexLock lock(&mutex_);
    status_.Update(bytes.status());
    bytes_ += bytes.value_or(0);
    --running_;
  }

  const CollectionOptions options_;
  const std::vector<StateOwnerAddress> others_;
  PulledState state_;
  Cancellation cancellation_;
  std::atomic<int64_t> received_{0};
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// Null where this rank reads nothing.
absl::StatusOr<std::unique_ptr<Reading>> Begin(const CollectionOptions& options) {
  const RankExchange::Options& ranks = options.exchange->options();
  const bool has_own = options.owner->view() != nullptr;
  std::vector<StateOwnerAddress> others;
  if (ranks.world_size > 1 || !has_own) {
    const absl::StatusOr<std::vector<std::string>> addresses =
        options.owner->owner_addresses(ranks.timeout / kReports);
    // The ranks can give each other the state without the coordinator.
    if (!addresses.ok()) return absl::UnavailableError(addresses.status().message());
    for (Rank rank = 0; rank < ranks.world_size; ++rank) {
      // Where every rank keeps all, each reads its own.
      if (rank == ranks.rank ? has_own : options.layout->replicated) continue;
      if (addresses->at(rank).empty()) {
        return absl::UnavailableError(
            absl::StrCat("the owner of rank ", rank, " is not served over RPC"));
      }
      others.push_back({rank, addresses->at(rank)});
    }
  }
  try {
    return std::make_unique<Reading>(options, std::move(others), has_own);
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(error.what());
  }
}

// Once it has ended.
absl::Status FinishOf(Reading& reading, absl::optional<std::map<int64_t, StateValues>>* result) {
  absl::Status status = reading.status();
  if (!status.ok()) return status;
  try {
    *result = reading.state().Finish();
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<absl::optional<std::map<int64_t, StateValues>>> CollectState(
    const CollectionOptions& options) {
  const RankExchange::Options& ranks = options.exchange->options();
  const bool wants = options.to == kFromEveryRank || options.to == ranks.rank;
  std::unique_ptr<Reading> reading;
  absl::Status status;
  if (wants) {
    absl::StatusOr<std::unique_ptr<Reading>> begun = Begin(options);
    status = begun.status();
    if (begun.ok()) reading = *std::move(begun);
  }
  absl::optional<std::map<int64_t, StateValues>> result;
  int64_t received = 0;
  int silent = 0;  // reports in a row
  uint64_t furthest = 0;
  while (true) {
    Stage stage = Stage::kDone;
    if (reading != nullptr && status.ok() && !result.has_value()) {
      if (reading->WaitFor(ranks.timeout / kReports)) {
        status = FinishOf(*reading, &result);
      } else {
        stage = Stage::kReads;
        silent = reading->received() == received ? silent + 1 : 0;
        received = reading->received();
        if (silent > kReports) {
          reading->Cancel(absl::DeadlineExceededError(absl::StrFormat(
              "nothing has come from the owners for %s", absl::FormatDuration(ranks.timeout))));
        }
      }
    }
    if (!status.ok()) stage = IsUnreachable(status) ? Stage::kUnreachable : Stage::kFailed;
    const absl::StatusOr<std::vector<uint64_t>> stages =
        options.exchange->Gather(static_cast<uint64_t>(stage));
    if (!stages.ok()) return stages.status();
    if (std::count(stages->begin(), stages->end(), static_cast<uint64_t>(Stage::kReads)) > 0) {
      continue;
    }
    furthest = *std::max_element(stages->begin(), stages->end());
    break;
  }
  if (furthest == static_cast<uint64_t>(Stage::kUnreachable)) {
    if (!status.ok()) {
      Log(LogLevel::kWarning, {"client", options.job, ranks.rank},
          "optimizer state is consolidated by the data plane, which is several times slower: %s",
          status.ToString());
    }
    return absl::optional<std::map<int64_t, StateValues>>();
  }
  if (furthest == static_cast<uint64_t>(Stage::kFailed)) {
    absl::Status failed = options.exchange->Agree(status);
    return failed;
  }
  if (reading == nullptr) return absl::make_optional<std::map<int64_t, StateValues>>();
  return result;
}

}  // namespace optshard
