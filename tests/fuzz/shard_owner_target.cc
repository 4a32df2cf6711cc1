#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/rpc/channel_rpc.h"
#include "proto/optshard/v1/checkpoint.grpc.pb.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/fuzz/answer_check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/shard/owner_rig.h"

namespace optshard::testing {
namespace {

constexpr int kWorldSize = 2;
constexpr char kOptimizer[] = "default";
constexpr absl::Duration kPatience = absl::Seconds(30);
// Of a save: four snapshots at most are open between two steps, and nobody steps.
constexpr absl::Duration kShortWait = absl::Milliseconds(20);
// Before a request is sent again for which there was no memory.
constexpr absl::Duration kPause = absl::Milliseconds(5);
constexpr int kLargestPage = 1000;
constexpr size_t kLargestAnswer = 4 << 20;

// Two shard owners over the fake data plane, after a step, behind one server.
class ShardOwnerTarget final : public FuzzTarget {
 public:
  ShardOwnerTarget() : rig_(RigOptions()) {
    for (const absl::Status& started : rig_.Start()) Require(started);
    rig_.GiveGradients(1);
    rig_.TellParameters();
    for (const auto& stepped : rig_.Step()) Require(stepped.status());
    for (Rank rank = 0; rank < kWorldSize; ++rank) {
      Require(views_.Register(kOptimizer, rank, &rig_.owner(rank).view()));
    }
    server_ = ShardOwnerServer::Start(ShardOwnerServer::Options(), &views_).value();
    const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", server_->port()));
    stub_ = v1::ShardOwner::NewStub(channel);
    inspection_ = v1::ShardInspection::NewStub(channel);
    saving_ = v1::ShardSaving::NewStub(channel);
  }

  ~ShardOwnerTarget() override {
    server_->Stop(absl::Seconds(1));
    for (Rank rank = 0; rank < kWorldSize; ++rank) views_.Unregister(kOptimizer, rank);
    rig_.Stop();
  }

  std::vector<FuzzRequest> Seeds() override {
    std::vector<FuzzRequest> seeds;
    for (Rank rank = 0; rank < kWorldSize; ++rank) {
      Add("DescribeShard", v1::DescribeShardRequest(), rank, seeds);
      v1::ListParametersRequest list;
      list.set_page_size(1);
      list.set_page_token("1");
      Add("ListParameters", list, rank, seeds);
      list.clear_page_token();
      list.set_name("*");
      Add("ListParameters", list, rank, seeds);
      Add("ListSteps", v1::ListShardStepsRequest(), rank, seeds);
      v1::DescribeSlotsRequest slots;
      for (int p = 0; p < rig_.space().parameter_count(); ++p) slots.add_parameters(p);
      Add("DescribeSlots", slots, rank, seeds);
      slots.set_slot("exp_avg*");
      slots.set_statistics(true);
      Add("DescribeSlots", slots, rank, seeds);
      Add("GetTimeline", v1::GetTimelineRequest(), rank, seeds);
      v1::ReadStateRequest state;
      Add("ReadState", state, rank, seeds);
      state.set_keep_copies(true);
      Add("ReadState", state, rank, seeds);
      v1::PrepareSnapshotRequest prepare;
      prepare.set_snapshot(1);
      prepare.set_keep_copies(true);
      Add("PrepareSnapshot", prepare, rank, seeds);
      state.set_snapshot(1);
      Add("ReadState", state, rank, seeds);
      v1::FollowSnapshotRequest follow;
      follow.set_snapshot(1);
      follow.set_step(1);
      follow.set_generation(1);
      Add("FollowSnapshot", follow, rank, seeds);
      v1::ForgetSnapshotRequest forget;
      forget.set_snapshot(1);
      Add("ForgetSnapshot", forget, rank, seeds);
      v1::SaveShardRequest save;
      *save.mutable_prepare() = PrepareToSave(rank);
      seeds.push_back({"SaveShard", std::make_shared<v1::SaveShardRequest>(save)});
      save.mutable_open()->set_patience_ms(1);
      seeds.push_back({"SaveShard", std::make_shared<v1::SaveShardRequest>(save)});
      // A directory that no process may change.
      save.mutable_write()->set_directory("/proc");
      save.mutable_write()->set_name("step-000000000001");
      seeds.push_back({"SaveShard", std::make_shared<v1::SaveShardRequest>(save)});
      save.mutable_write_model()->set_directory("/proc");
      save.mutable_write_model()->set_name(absl::StrCat("m.", std::string(32, '0'), ".unfinished"));
      save.mutable_write_model()->set_shard_bytes(1000);
      save.mutable_write_model()->set_layout_checksum(1);
      seeds.push_back({"SaveShard", std::make_shared<v1::SaveShardRequest>(save)});
      for (const OwnedSlice& slice : rig_.owner(rank).view().Slices(0, kLargestPage)) {
        for (const char* slot : {"exp_avg", "step"}) {
          v1::ReadSlotRequest read;
          read.set_name(slice.name);
          read.set_slot(slot);
          Add("ReadSlot", read, rank, seeds);
          read.clear_name();
          read.set_parameter(slice.parameter);
          read.set_offset_elements(slice.offset_elements);
          read.set_elements(1);
          Add("ReadSlot", read, rank, seeds);
        }
      }
    }
    return seeds;
  }

  // Snapshots of requests before this one have the memory until they are forgotten, which is soon:
  // a save's after its stream has ended.
  std::string Send(const FuzzRequest& request) override {
    const Clock& clock = Clock::Monotonic();
    const absl::Time end = clock.Now() + kPatience;
    while (true) {
      lacked_memory_ = false;
      std::string wrong = SendOnce(request);
      if (!lacked_memory_ || clock.Now() >= end) return wrong;
      absl::SleepFor(kPause);
    }
  }

 private:
  std::string SendOnce(const FuzzRequest& request) {
    if (request.method == "DescribeShard") {
      return Describe(static_cast<const v1::DescribeShardRequest&>(*request.message));
    }
    if (request.method == "ListParameters") {
      return List(static_cast<const v1::ListParametersRequest&>(*request.message));
    }
    if (request.method == "DescribeSlots") {
      return DescribeSlots(static_cast<const v1::DescribeSlotsRequest&>(*request.message));
    }
    if (request.method == "ListSteps") {
      return ListSteps(static_cast<const v1::ListShardStepsRequest&>(*request.message));
    }
    if (request.method == "GetTimeline") {
      return Timeline(static_cast<const v1::GetTimelineRequest&>(*request.message));
    }
    if (request.method == "ReadState") {
      return ReadState(static_cast<const v1::ReadStateRequest&>(*request.message));
    }
    if (request.method == "PrepareSnapshot") {
      return Prepare(static_cast<const v1::PrepareSnapshotRequest&>(*request.message));
    }
    if (request.method == "FollowSnapshot") {
      return Follow(static_cast<const v1::FollowSnapshotRequest&>(*request.message));
    }
    if (request.method == "ForgetSnapshot") {
      return Forget(static_cast<const v1::ForgetSnapshotRequest&>(*request.message));
    }
    if (request.method == "SaveShard") {
      return Save(static_cast<const v1::SaveShardRequest&>(*request.message));
    }
    return Read(static_cast<const v1::ReadSlotRequest&>(*request.message));
  }

  std::string Check(const grpc::Status& status, bool may_wait = false) {
    lacked_memory_ = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    return CheckStatus(status, may_wait);
  }

  static OwnerRig::Options RigOptions() {
    OwnerRig::Options options = OwnerRig::MixedOptions(kWorldSize);
    options.owner.spec.policy = PartitionPolicy::kBalanced;
    options.owner.optimizer = kOptimizer;
    return options;
  }

  template <typename Message>
  static void Add(const std::string& method, Message message, Rank rank,
                  std::vector<FuzzRequest>& seeds) {
    message.set_rank(rank);
    message.set_optimizer(kOptimizer);
    seeds.push_back({method, std::make_shared<Message>(message)});
  }

  std::string Describe(const v1::DescribeShardRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::ShardDescription description;
    return Check(stub_->DescribeShard(&context, request, &description));
  }

  std::string List(const v1::ListParametersRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::ListParametersResponse page;
    const grpc::Status status = stub_->ListParameters(&context, request, &page);
    if (!status.ok()) return Check(status);
    if (page.parameters_size() == 0 && request.name().empty()) return "a page without slices";
    if (page.parameters_size() > kLargestPage || page.ByteSizeLong() >= kLargestAnswer) {
      return absl::StrCat("a page of ", page.parameters_size(), " slices");
    }
    return "";
  }

  // Nobody steps: all values are of one step.
  std::string DescribeSlots(const v1::DescribeSlotsRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::DescribeSlotsResponse response;
    const grpc::Status status = inspection_->DescribeSlots(&context, request, &response);
    if (!status.ok()) return Check(status);
    if (response.ByteSizeLong() >= kLargestAnswer) return "a large answer";
    for (const v1::ParameterPart& part : response.parts()) {
      for (const v1::SlotPart& slot : part.slots()) {
        const int64_t counted = slot.zeros() + slot.non_finite();
        if (slot.first_step() != slot.last_step() || counted < 0 || counted > slot.elements()) {
          return absl::StrCat("statistics of ", slot.elements(), " elements, ", counted,
                              " of them counted, steps ", slot.first_step(), " to ",
                              slot.last_step());
        }
      }
    }
    return "";
  }

  std::string ListSteps(const v1::ListShardStepsRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::ListShardStepsResponse response;
    return Check(inspection_->ListSteps(&context, request, &response));
  }

  std::string Timeline(const v1::GetTimelineRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    const auto stream = stub_->GetTimeline(&context, request);
    v1::TimelineChunk chunk;
    while (stream->Read(&chunk)) {
    }
    return Check(stream->Finish());
  }

  // Nobody steps: all of it is there, in frames of one step.
  std::string ReadState(const v1::ReadStateRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    if (request.snapshot() != 0) PrepareSnapshotOf(request);
    const auto stream = stub_->ReadState(&context, request);
    int64_t bytes = 0;
    v1::StateFrame frame;
    while (stream->Read(&frame)) bytes += static_cast<int64_t>(frame.values().size());
    const grpc::Status status = stream->Finish();
    if (!status.ok()) {
      // It may have left what was prepared, of which there cannot be many.
      const std::string wrong = request.snapshot() == 0 ? "" : ForgetSnapshotOf(request);
      return wrong.empty() ? Check(status) : wrong;
    }
    if (frame.step() == 1 && bytes == frame.total_bytes()) return "";
    return absl::StrCat("OK with ", bytes, " of ", frame.total_bytes(), " bytes of step ",
                        frame.step());
  }

  std::string Prepare(const v1::PrepareSnapshotRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::PrepareSnapshotResponse response;
    const grpc::Status status = stub_->PrepareSnapshot(&context, request, &response);
    return status.ok() ? ForgetSnapshotOf(request) : Check(status);
  }

  std::string Follow(const v1::FollowSnapshotRequest& request) {
    PrepareSnapshotOf(request);
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::FollowSnapshotResponse response;
    const std::string wrong = Check(stub_->FollowSnapshot(&context, request, &response));
    return wrong.empty() ? ForgetSnapshotOf(request) : wrong;
  }

  // Where this fails, the call that it is for fails, too.
  template <typename Request>
  void PrepareSnapshotOf(const Request& request) {
    v1::PrepareSnapshotRequest prepare;
    prepare.set_optimizer(request.optimizer());
    if (request.has_rank()) prepare.set_rank(request.rank());
    prepare.set_snapshot(request.snapshot());
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::PrepareSnapshotResponse response;
    if (!stub_->PrepareSnapshot(&context, prepare, &response).ok()) response.Clear();
  }

  template <typename Request>
  std::string ForgetSnapshotOf(const Request& request) {
    v1::ForgetSnapshotRequest forget;
    forget.set_optimizer(request.optimizer());
    if (request.has_rank()) forget.set_rank(request.rank());
    forget.set_snapshot(request.snapshot());
    return Forget(forget);
  }

  std::string Forget(const v1::ForgetSnapshotRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::ForgetSnapshotResponse response;
    return Check(stub_->ForgetSnapshot(&context, request, &response));
  }

  v1::PrepareShard PrepareToSave(Rank rank) {
    v1::PrepareShard prepare;
    prepare.set_optimizer(kOptimizer);
    prepare.set_rank(rank);
    prepare.set_snapshot_id(++snapshot_);
    return prepare;
  }

  // After what comes before it in a save. There is no place to write to, so that no save succeeds.
  std::string Save(const v1::SaveShardRequest& request) {
    std::vector<v1::SaveShardRequest> messages;
    const bool writes = request.has_write() || request.has_write_model();
    if (request.has_open() || writes) {
      *messages.emplace_back().mutable_prepare() = PrepareToSave(0);
      messages.back().mutable_prepare()->set_model(request.has_write_model());
    }
    if (writes) messages.emplace_back().mutable_open();
    messages.push_back(request);
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kShortWait));
    const auto stream = saving_->SaveShard(&context);
    v1::SaveShardResponse response;
    for (const v1::SaveShardRequest& message : messages) {
      if (!stream->Write(message) || !stream->Read(&response)) break;
    }
    stream->WritesDone();
    while (stream->Read(&response)) {
    }
    const grpc::Status status = stream->Finish();
    if (status.ok()) return "a checkpoint was saved";
    return Check(status, true);
  }

  std::string Read(const v1::ReadSlotRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    const auto stream = stub_->ReadSlot(&context, request);
    int64_t values = 0;
    v1::SlotChunk chunk;
    while (stream->Read(&chunk)) values += chunk.values_size();
    const grpc::Status status = stream->Finish();
    if (!status.ok()) return Check(status);
    const int64_t size = request.slot() == "step" ? 1 : ElementsOf(request);
    const int64_t offset = request.offset_elements();
    if (offset < 0 || offset > size || values > size - offset ||
        (request.elements() != 0 && values != request.elements())) {
      return absl::StrCat("OK with ", values, " values from ", offset, " on of a slot of ", size,
                          " elements");
    }
    return "";
  }

  // -1 where there is no such parameter.
  int64_t ElementsOf(const v1::ReadSlotRequest& request) const {
    const ParameterSpace& space = rig_.space();
    for (int p = 0; p < space.parameter_count(); ++p) {
      const bool meant = request.name().empty() ? p == request.parameter()
                                                : space.parameter(p).name == request.name();
      if (meant) return space.parameter(p).elements();
    }
    return -1;
  }

  OwnerRig rig_;
  ShardViewRegistry views_;
  std::unique_ptr<ShardOwnerServer> server_;
  std::unique_ptr<v1::ShardOwner::Stub> stub_;
  std::unique_ptr<v1::ShardInspection::Stub> inspection_;
  std::unique_ptr<v1::ShardSaving::Stub> saving_;
  uint64_t snapshot_ = 1000;  // the last one of a save
  bool lacked_memory_ = false;
};

}  // namespace

std::unique_ptr<FuzzTarget> MakeShardOwnerTarget() { return std::make_unique<ShardOwnerTarget>(); }

}  // namespace optshard::testing
