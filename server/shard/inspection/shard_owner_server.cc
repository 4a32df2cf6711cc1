#include "server/shard/inspection/shard_owner_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/dtype.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "common/rpc/status_rpc.h"
#include "common/state_format.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "server/shard/inspection/shard_inspection_service.h"
#include "server/shard/inspection/shard_owner_rpc.h"
#include "server/shard/inspection/state_stream_service.h"
#include "server/shard/inspection/timeline_json.h"
#include "server/shard/inspection/view_of_request.h"
#include "server/shard/saving/shard_saving_service.h"
#include "server/shard/snapshot/agreed_snapshots.h"

namespace optshard {
namespace {

constexpr size_t kTimelineChunkBytes = 1 << 20;

// Finds a view for each piece of work anew, so that an owner that goes away waits for one piece,
// not for a client that reads slowly.
class ShardOwnerService final
    : public v1::ShardOwner::WithRawCallbackMethod_ReadState<v1::ShardOwner::Service> {
 public:
  ShardOwnerService(ShardViewRegistry* views, const StateStreamLimits& limits)
      : views_(views), limits_(limits) {}

  grpc::Status DescribeShard(grpc::ServerContext*, const v1::DescribeShardRequest* request,
                             v1::ShardDescription* response) override {
    const absl::StatusOr<ShardViewRegistry::Use> view = FindMember(*views_, *request);
    if (!view.ok()) return ToGrpc(view.status());
    *response = ToProto((*view)->Describe());
    return grpc::Status::OK;
  }

  grpc::Status ListParameters(grpc::ServerContext*, const v1::ListParametersRequest* request,
                              v1::ListParametersResponse* response) override {
    const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(Selected(*request));
    if (!view.ok()) return ToGrpc(view.status());
    absl::StatusOr<v1::ListParametersResponse> page = optshard::ListParameters(**view, *request);
    if (!page.ok()) return ToGrpc(page.status());
    *response = std::move(*page);
    return grpc::Status::OK;
  }

  grpc::Status ReadSlot(grpc::ServerContext*, const v1::ReadSlotRequest* request,
                        grpc::ServerWriter<v1::SlotChunk>* writer) override {
    absl::StatusOr<SlotRange> range = Locate(*request);
    if (!range.ok()) return ToGrpc(range.status());
    StepNumber first_step = 0;
    int64_t done = 0;
    // At least one chunk, also of nothing: it says which step that is.
    do {
      v1::SlotChunk chunk;
      const int64_t elements = std::min(range->elements - done, kChunkElements);
      const absl::Status read = ReadChunk(*request, *range, done, elements, &chunk);
      if (!read.ok()) return ToGrpc(read);
      if (done == 0) first_step = chunk.step();
      if (chunk.step() != first_step) {
        return ToGrpc(absl::AbortedError(absl::StrFormat(
            "step %d came while step %d was read, after %d of %d elements; ask again, or for at "
            "most %d elements at a time",
            chunk.step(), first_step, done, range->elements, kChunkElements)));
      }
      done += elements;
      if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
    } while (done < range->elements);
    return grpc::Status::OK;
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadState(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override {
    return StartStateStream(context, *request, views_, limits_, streams_);
  }

  grpc::Status PrepareSnapshot(grpc::ServerContext*, const v1::PrepareSnapshotRequest* request,
                               v1::PrepareSnapshotResponse*) override {
    // Only briefly a view: memory may take long.
    const absl::StatusOr<std::shared_ptr<AgreedSnapshots>> agreed =
        SnapshotsOf(*request, request->job());
    if (!agreed.ok()) return ToGrpc(agreed.status());
    SnapshotContents contents;
    contents.keep_copies = request->keep_copies();
    contents.parameters = request->parameters();
    return ToGrpc((*agreed)->Prepare(request->snapshot(), contents));
  }

  grpc::Status FollowSnapshot(grpc::ServerContext*, const v1::FollowSnapshotRequest* request,
                              v1::FollowSnapshotResponse*) override {
    const absl::StatusOr<std::shared_ptr<AgreedSnapshots>> agreed = SnapshotsOf(*request, "");
    if (!agreed.ok()) return ToGrpc(agreed.status());
    (*agreed)->OpenedElsewhere(request->snapshot(),
                               {request->generation(), request->step(), request->skipped()});
    return grpc::Status::OK;
  }

  grpc::Status ForgetSnapshot(grpc::ServerContext*, const v1::ForgetSnapshotRequest* request,
                              v1::ForgetSnapshotResponse*) override {
    const absl::StatusOr<std::shared_ptr<AgreedSnapshots>> agreed = SnapshotsOf(*request, "");
    if (!agreed.ok()) return ToGrpc(agreed.status());
    (*agreed)->Forget(request->snapshot());
    return grpc::Status::OK;
  }

  grpc::Status GetTimeline(grpc::ServerContext*, const v1::GetTimelineRequest* request,
                           grpc::ServerWriter<v1::TimelineChunk>* writer) override {
    const absl::StatusOr<std::string> json = Timeline(*request);
    if (!json.ok()) return ToGrpc(json.status());
    for (size_t sent = 0; sent < json->size(); sent += kTimelineChunkBytes) {
      v1::TimelineChunk chunk;
      chunk.set_json(json->substr(sent, kTimelineChunkBytes));
      if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

 private:
  absl::StatusOr<SlotRange> Locate(const v1::ReadSlotRequest& request) {
    const absl::StatusOr<ShardViewRegistry::Use> view = FindMember(*views_, request);
    if (!view.ok()) return view.status();
    return FindSlotRange(**view, request);
  }

  absl::Status ReadChunk(const v1::ReadSlotRequest& request, const SlotRange& range, int64_t done,
                         int64_t elements, v1::SlotChunk* chunk) {
    const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(Selected(request));
    if (!view.ok()) return view.status();
    const int64_t offset = range.offset_elements + done;
    std::vector<double> values(elements);
    const absl::StatusOr<SlotRead> read =
        (*view)->ReadSlot(range.parameter, request.slot(), offset, absl::MakeSpan(values));
    if (!read.ok()) return read.status();
    if (read->format == StateFormat::kFloat64) {
      chunk->mutable_float64_values()->Assign(values.begin(), values.end());
    } else {
      chunk->mutable_values()->Assign(values.begin(), values.end());
    }
    chunk->set_step(read->step);
    chunk->set_offset_elements(offset);
    chunk->set_dtype(static_cast<v1::DType>(DTypeOf(read->format)));
    chunk->set_format(static_cast<v1::StateFormat>(read->format));
    chunk->set_summary(absl::StrFormat("%s of %s, %s, elements [%d, %d), step %d", request.slot(),
                                       range.name, NameOf(read->format), offset, offset + elements,
                                       read->step));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Timeline(const v1::GetTimelineRequest& request) {
    const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(Selected(request));
    if (!view.ok()) return view.status();
    return TimelineJson((*view)->Describe().member, (*view)->Timeline());
  }

  template <typename Request>
  absl::StatusOr<std::shared_ptr<AgreedSnapshots>> SnapshotsOf(const Request& request,
                                                               const std::string& job) {
    const absl::StatusOr<ShardViewRegistry::Use> view = FindView(*views_, request, job);
    if (!view.ok()) return view.status();
    return (*view)->agreed_snapshots();
  }

  ShardViewRegistry* const views_;
  const StateStreamLimits limits_;
  const StateStreamCount streams_ = std::make_shared<std::atomic<int>>(0);
};

ShardSavingService::Options SavingOptions(ShardViewRegistry* views) {
  ShardSavingService::Options options;
  options.views = views;
  return options;
}

}  // namespace

class ShardOwnerServer::Impl {
 public:
  Impl(ShardViewRegistry* views, const StateStreamLimits& streams)
      : service_(views, streams), inspection_(views), saving_(SavingOptions(views)) {}
  ~Impl() { Stop(absl::Seconds(1)); }

  absl::Status Start(const Options& options) {
    absl::StatusOr<ListeningServer> listening =
        StartServer(options.listen, {&service_, &inspection_, &saving_});
    if (!listening.ok()) return listening.status();
    port_ = listening->port;
    {
      absl::MutexLock lock(&stop_mutex_);
      server_ = std::move(listening->server);
    }
    SetServing(options.serving);
    return absl::OkStatus();
  }

  int port() const { return port_; }

  void SetServing(bool serving) {
    absl::MutexLock lock(&stop_mutex_);
    if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(serving);
  }

  void Stop(absl::Duration grace) {
    // Held throughout: whoever calls second returns when it is done, too.
    absl::MutexLock lock(&stop_mutex_);
    if (server_ == nullptr) return;
    server_->Shutdown(DeadlineAfter(grace));
    server_->Wait();
    server_.reset();
  }

 private:
  ShardOwnerService service_;
  ShardInspectionService inspection_;
  ShardSavingService saving_;
  int port_ = 0;
  absl::Mutex stop_mutex_;
  std::unique_ptr<grpc::Server> server_ ABSL_GUARDED_BY(stop_mutex_);
};

absl::StatusOr<std::unique_ptr<ShardOwnerServer>> ShardOwnerServer::Start(
    const Options& options, ShardViewRegistry* views) {
  auto impl = std::make_unique<Impl>(views, options.streams);
  const absl::Status started = impl->Start(options);
  if (!started.ok()) return started;
  return std::unique_ptr<ShardOwnerServer>(new ShardOwnerServer(std::move(impl)));
}

ShardOwnerServer::ShardOwnerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardOwnerServer::~ShardOwnerServer() = default;
int ShardOwnerServer::port() const { return impl_->port(); }
void ShardOwnerServer::SetServing(bool serving) { impl_->SetServing(serving); }
void ShardOwnerServer::Stop(absl::Duration grace) { impl_->Stop(grace); }

}  // namespace optshard
