#include "server/coordinator/saving/checkpoints_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/status_rpc.h"
#include "common/utf8_prefix.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_text.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/named_directory.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr int kMostFollowers = 16384;
constexpr size_t kMostRequestIdBytes = 256;
constexpr absl::Duration kBetweenReports = absl::Milliseconds(200);
constexpr int kDefaultPageSize = 100;
constexpr int kLargestPageSize = 1000;
constexpr size_t kPageBytes = 1 << 20;
constexpr size_t kMostProblemBytes = 1000;

using Reactor = grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>;

v1::SaveCheckpointUpdate ToProto(const CheckpointSave::Status& status, const std::string& directory,
                                 const absl::optional<Rank>& rank) {
  const SaveProgress& progress = status.progress;
  v1::SaveCheckpointUpdate update;
  update.set_summary(Summary(status, directory));
  update.set_phase(static_cast<v1::SavePhase>(progress.phase));
  if (progress.step.has_value()) update.set_step(*progress.step);
  const auto& opened = progress.opened;
  if (rank.has_value()) {
    update.set_opened(*rank < static_cast<Rank>(opened.size()) && opened[*rank]);
  } else {
    update.set_opened(!opened.empty() &&
                      std::find(opened.begin(), opened.end(), false) == opened.end());
  }
  update.set_bytes(progress.bytes);
  update.set_total_bytes(progress.all_bytes);
  update.set_ranks_done(progress.written);
  update.set_world_size(static_cast<int32_t>(opened.size()));
  update.set_name(progress.name);
  update.set_directory(directory);
  if (!status.ended) return update;
  update.set_committed(true);
  for (const std::string& removed : status.saved.removed) update.add_removed(removed);
  update.set_removal_problem(std::string(status.saved.removal.message()));
  return update;
}

// What the reactor shares with the save's wake-ups, which may come after the reactor's end. Whoever
// starts a write or finishes claims that under the lock first; the reactor lives until it has been
// finished and its write is done, so the claim keeps it alive. Thread-safe.
class FollowState : public std::enable_shared_from_this<FollowState> {
 public:
  FollowState(std::shared_ptr<CheckpointSave> save, absl::optional<Rank> rank, Reactor* reactor)
      : save_(std::move(save)), rank_(rank), reactor_(reactor) {}

  void Begin() {
    const auto watch = save_->Watch([weak = weak_from_this()] {
      if (const std::shared_ptr<FollowState> state = weak.lock()) state->Advance();
    });
    {
      absl::MutexLock lock(&mutex_);
      watch_ = watch;
    }
    Advance();
  }

  void WriteDone(bool ok) {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      cancelled_ |= !ok;
    }
    Advance();
  }

  void Cancel() {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    Advance();
  }

  void Done() {
    CheckpointSave::WatchNumber watch;
    {
      absl::MutexLock lock(&mutex_);
      watch = watch_;
    }
    save_->Unwatch(watch);
  }

 private:
  enum class Action { kNone, kWrite, kFinish };

  // Writes how far it is, or finishes, if there is something to do and nothing under way.
  void Advance() {
    grpc::Status status;
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      action = Claim(status);
    }
    if (action == Action::kWrite) reactor_->StartWrite(&message_);
    if (action == Action::kFinish) reactor_->Finish(status);
  }

  Action Claim(grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return Action::kNone;
    const CheckpointSave::Status now = save_->Read();
    if (cancelled_ || (now.ended && (!now.error.ok() || message_.committed()))) {
      status = cancelled_ ? grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone")
                          : ToGrpc(now.error);
      finished_ = true;
      return Action::kFinish;
    }
    v1::SaveCheckpointUpdate next = ToProto(now, save_->directory(), rank_);
    const bool is_news = !sent_.has_value() || next.phase() != message_.phase() ||
                         next.opened() != message_.opened() || next.committed();
    if (!is_news && absl::Now() < *sent_ + kBetweenReports) return Action::kNone;
    message_ = std::move(next);
    sent_ = absl::Now();
    writing_ = true;
    return Action::kWrite;
  }

  const std::shared_ptr<CheckpointSave> save_;
  const absl::optional<Rank> rank_;
  Reactor* const reactor_;

  absl::Mutex mutex_;
  CheckpointSave::WatchNumber watch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::optional<absl::Time> sent_ ABSL_GUARDED_BY(mutex_);
  // Written by whoever sets writing_, read by gRPC until the write is done.
  v1::SaveCheckpointUpdate message_;
};

class FollowReactor final : public Reactor {
 public:
  FollowReactor(std::shared_ptr<CheckpointSave> save, absl::optional<Rank> rank,
                std::shared_ptr<std::atomic<int>> followers)
      : state_(std::make_shared<FollowState>(std::move(save), rank, this)),
        followers_(std::move(followers)) {}
  ~FollowReactor() override { followers_->fetch_sub(1); }

  void Begin() { state_->Begin(); }

  void OnWriteDone(bool ok) override { state_->WriteDone(ok); }
  void OnCancel() override { state_->Cancel(); }
  void OnDone() override {
    state_->Done();
    delete this;
  }

 private:
  const std::shared_ptr<FollowState> state_;
  const std::shared_ptr<std::atomic<int>> followers_;
};

class RefusingReactor final : public Reactor {
 public:
  explicit RefusingReactor(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

v1::CheckpointSummary ToProto(const CheckpointEntry& entry) {
  v1::CheckpointSummary checkpoint;
  checkpoint.set_name(entry.name);
  checkpoint.set_state(std::string(NameOf(entry.state)));
  checkpoint.set_step(entry.parsed.step);
  if (entry.state != CheckpointState::kCommitted) {
    checkpoint.set_problem(std::string(Utf8Prefix(entry.problem.message(), kMostProblemBytes)));
    checkpoint.set_summary(absl::StrCat(entry.name, "  ", NameOf(entry.state),
                                        checkpoint.problem().empty() ? "" : "  ",
                                        checkpoint.problem()));
    return checkpoint;
  }
  checkpoint.set_job(entry.job);
  checkpoint.set_optimizer(entry.optimizer);
  checkpoint.set_world_size(entry.world_size);
  checkpoint.set_bytes(entry.bytes);
  checkpoint.set_saved_at(TimeText(entry.saved_at));
  for (const std::string& label : entry.labels) checkpoint.add_labels(label);
  checkpoint.set_summary(absl::StrFormat("%s  committed  %s/%s  %d %s  %s  %s", entry.name,
                                         entry.job, entry.optimizer, entry.world_size,
                                         entry.world_size == 1 ? "rank" : "ranks",
                                         SizeText(entry.bytes), checkpoint.saved_at()));
  return checkpoint;
}

// A page of them, whose token is the number of the first one.
absl::StatusOr<v1::ListCheckpointsResponse> Page(const std::vector<CheckpointEntry>& entries,
                                                 const v1::ListCheckpointsRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(absl::StrFormat("page_size is %d, expected 0 to %d",
                                                      request.page_size(), kLargestPageSize));
  }
  size_t first = 0;
  if (!request.page_token().empty() && (!absl::SimpleAtoi(request.page_token(), &first))) {
    return absl::InvalidArgumentError("page_token is not one that this call has returned");
  }
  const size_t size =
      request.page_size() == 0 ? kDefaultPageSize : std::min(request.page_size(), kLargestPageSize);
  v1::ListCheckpointsResponse page;
  size_t bytes = 0;
  size_t next = first;
  for (; next < entries.size() && next - first < size && bytes < kPageBytes; ++next) {
    *page.add_checkpoints() = ToProto(entries[next]);
    bytes += page.checkpoints().rbegin()->ByteSizeLong();
  }
  if (next < entries.size()) page.set_next_page_token(absl::StrCat(next));
  const auto committed = std::count_if(
      entries.begin(), entries.end(),
      [](const CheckpointEntry& entry) { return entry.state == CheckpointState::kCommitted; });
  page.set_summary(
      absl::StrFormat("%d checkpoints, %d of them committed", entries.size(), committed));
  return page;
}

}  // namespace

template <typename Request>
grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>* CheckpointsService::Follow(
    const Request& request, SaveRequest asked) {
  if (request.request_id().size() > kMostRequestIdBytes) {
    return new RefusingReactor(absl::InvalidArgumentError(absl::StrFormat(
        "request_id has %d bytes, at most %d", request.request_id().size(), kMostRequestIdBytes)));
  }
  if (request.has_rank() && (request.rank() < 0 || request.rank() >= world_size_)) {
    return new RefusingReactor(absl::InvalidArgumentError(
        absl::StrFormat("rank %d is not a rank of a job of %d", request.rank(), world_size_)));
  }
  asked.optimizer = request.optimizer();
  asked.directory = request.directory();
  asked.request_id = request.request_id();
  if (request.has_step()) asked.step = request.step();
  absl::optional<Rank> rank;
  if (request.has_rank()) rank = request.rank();
  if (followers_->fetch_add(1) >= kMostFollowers) {
    followers_->fetch_sub(1);
    return new RefusingReactor(absl::ResourceExhaustedError(
        absl::StrFormat("%d callers follow saves already; ask again later", kMostFollowers)));
  }
  auto save = saves_.Begin(asked);
  if (!save.ok()) {
    followers_->fetch_sub(1);
    return new RefusingReactor(save.status());
  }
  auto* reactor = new FollowReactor(*std::move(save), rank, followers_);
  reactor->Begin();
  return reactor;
}

grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>* CheckpointsService::SaveCheckpoint(
    grpc::CallbackServerContext*, const v1::SaveCheckpointRequest* request) {
  SaveRequest asked;
  asked.labels = {request->labels().begin(), request->labels().end()};
  return Follow(*request, std::move(asked));
}

grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>* CheckpointsService::ExportModel(
    grpc::CallbackServerContext*, const v1::ExportModelRequest* request) {
  SaveRequest asked;
  asked.model_shard_bytes =
      request->shard_bytes() == 0 ? kDefaultShardBytes : request->shard_bytes();
  return Follow(*request, std::move(asked));
}

grpc::Status CheckpointsService::ListCheckpoints(grpc::ServerContext*,
                                                 const v1::ListCheckpointsRequest* request,
                                                 v1::ListCheckpointsResponse* response) {
  const CheckpointSaves::Options& options = saves_.options();
  const std::string path = request->directory().empty() ? options.directory : request->directory();
  if (path.empty()) {
    return ToGrpc(absl::FailedPreconditionError(
        "the request names no directory, and the coordinator has no --checkpoint-dir"));
  }
  const absl::Status named = CheckNamedDirectory(path);
  if (!named.ok()) return ToGrpc(named);
  const auto root = options.driver.files->OpenDirectory(path);
  if (!root.ok()) return ToGrpc(root.status());
  const auto entries = optshard::ListCheckpoints(**root);
  if (!entries.ok()) return ToGrpc(entries.status());
  auto page = Page(*entries, *request);
  if (!page.ok()) return ToGrpc(page.status());
  *response = *std::move(page);
  return grpc::Status::OK;
}

}  // namespace optshard
