#include "server/shard/inspection/shard_inspection_service.h"

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/name_glob.h"
#include "common/parameter_space.h"
#include "common/rpc/status_rpc.h"
#include "server/shard/inspection/idle_thread.h"
#include "server/shard/inspection/slot_scan.h"
#include "server/shard/inspection/step_durations.h"
#include "server/shard/inspection/view_of_request.h"

namespace optshard {
namespace {

constexpr int kMostParameters = 1000;
constexpr int kMostCalls = 64;  // each has a thread of gRPC's
constexpr absl::Duration kLongestCall = absl::Minutes(1);
constexpr absl::Duration kTurnPoll = absl::Milliseconds(50);
// How long a piece of values waits for the end of a step, which needs the memory's bandwidth.
constexpr int kMostPauses = 20;
constexpr absl::Duration kPause = absl::Milliseconds(1);

absl::Status CheckRequest(const v1::DescribeSlotsRequest& request) {
  if (request.parameters_size() > kMostParameters) {
    return absl::InvalidArgumentError(absl::StrFormat("%d parameters, expected at most %d",
                                                      request.parameters_size(), kMostParameters));
  }
  for (const int32_t parameter : request.parameters()) {
    if (parameter >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("parameter is %d, expected at least 0", parameter));
  }
  return CheckGlob("slot", request.slot());
}

void AddPart(const OwnedSlice& slice, const std::string& pattern, v1::DescribeSlotsResponse* to) {
  v1::ParameterPart& part = *to->add_parts();
  part.set_parameter(slice.parameter);
  part.set_offset_elements(slice.offset_elements);
  part.set_elements(slice.elements);
  part.set_step(slice.step);
  for (const std::string& name : slice.slots) {
    if (!MatchesGlob(name, pattern)) continue;
    v1::SlotPart& slot = *part.add_slots();
    slot.set_slot(name);
    const auto shape = slice.slot_shapes.find(name);
    slot.set_is_whole(shape != slice.slot_shapes.end());
    slot.set_elements(slot.is_whole() ? ElementsOf(shape->second) : slice.elements);
  }
}

void SetStatistics(const SlotScan& scan, v1::SlotPart* slot) {
  slot->set_format(static_cast<v1::StateFormat>(scan.format));
  slot->set_sum(scan.statistics.sum);
  slot->set_sum_of_squares(scan.statistics.sum_of_squares);
  slot->set_min(scan.statistics.min);
  slot->set_max(scan.statistics.max);
  slot->set_zeros(scan.statistics.zeros);
  slot->set_non_finite(scan.statistics.non_finite);
  slot->set_first_step(scan.first_step);
  slot->set_last_step(scan.last_step);
}

}  // namespace

// One call's turn to scan.
class ShardInspectionService::Turn {
 public:
  explicit Turn(ShardInspectionService* service) : service_(*service) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  ~Turn() {
    if (!counted_) return;
    absl::MutexLock lock(&service_.mutex_);
    --service_.calls_;
    if (has_it_) service_.scanning_ = false;
  }

  // Waits for it as long as `proceed` says.
  absl::Status Wait(absl::FunctionRef<absl::Status()> proceed) {
    absl::MutexLock lock(&service_.mutex_);
    if (service_.calls_ >= kMostCalls) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%d calls look into slots of this process already; ask again later", service_.calls_));
    }
    ++service_.calls_;
    counted_ = true;
    while (!service_.mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](bool* scanning) { return !*scanning; }, &service_.scanning_),
        kTurnPoll)) {
      absl::Status wanted = proceed();
      if (!wanted.ok()) return wanted;
    }
    service_.scanning_ = true;
    has_it_ = true;
    return absl::OkStatus();
  }

 private:
  ShardInspectionService& service_;
  bool counted_ = false;
  bool has_it_ = false;
};

grpc::Status ShardInspectionService::DescribeSlots(grpc::ServerContext* context,
                                                   const v1::DescribeSlotsRequest* request,
                                                   v1::DescribeSlotsResponse* response) {
  absl::Status status = CheckRequest(*request);
  if (status.ok()) status = Describe(*request, response);
  if (!status.ok() || !request->statistics()) return ToGrpc(status);
  const absl::Time end = Clock::Monotonic().Now() + kLongestCall;
  const auto proceed = [context, end] {
    if (context->IsCancelled()) return absl::CancelledError("the client has gone");
    if (Clock::Monotonic().Now() < end) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrFormat(
        "the values were not gone through in %s, since others use the CPUs; ask for fewer "
        "parameters",
        absl::FormatDuration(kLongestCall)));
  };
  Turn turn(this);
  status = turn.Wait(proceed);
  if (!status.ok()) return ToGrpc(status);
  RunOnIdleThread([&] { status = AddStatistics(*request, proceed, response); });
  return ToGrpc(status);
}

absl::Status ShardInspectionService::Describe(const v1::DescribeSlotsRequest& request,
                                              v1::DescribeSlotsResponse* response) {
  const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(Selected(request));
  if (!view.ok()) return view.status();
  response->set_generation((*view)->Describe().generation);
  for (const int32_t parameter : request.parameters()) {
    for (const OwnedSlice& slice : (*view)->SlicesOf(parameter)) {
      AddPart(slice, request.slot(), response);
    }
  }
  return absl::OkStatus();
}

absl::Status ShardInspectionService::AddStatistics(const v1::DescribeSlotsRequest& request,
                                                   absl::FunctionRef<absl::Status()> proceed,
                                                   v1::DescribeSlotsResponse* response) {
  const auto read = [&](int32_t parameter, const std::string& slot, int64_t offset,
                        absl::Span<double> out) -> absl::StatusOr<SlotRead> {
    for (int pauses = 0;; ++pauses) {
      {
        const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(Selected(request));
        if (!view.ok()) return view.status();
        if ((*view)->Activity().phase == RankPhase::kIdle || pauses == kMostPauses) {
          return (*view)->ReadSlot(parameter, slot, offset, out);
        }
      }
      absl::SleepFor(kPause);
    }
  };
  for (v1::ParameterPart& part : *response->mutable_parts()) {
    for (v1::SlotPart& slot : *part.mutable_slots()) {
      SlotScanRange range;
      range.parameter = part.parameter();
      range.slot = slot.slot();
      range.offset_elements = slot.is_whole() ? 0 : part.offset_elements();
      range.elements = slot.elements();
      const absl::StatusOr<SlotScan> scan = ScanSlot(range, read, proceed);
      if (!scan.ok()) return scan.status();
      SetStatistics(*scan, &slot);
    }
  }
  return absl::OkStatus();
}

grpc::Status ShardInspectionService::ListSteps(grpc::ServerContext*,
                                               const v1::ListShardStepsRequest* request,
                                               v1::ListShardStepsResponse* response) {
  const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(Selected(*request));
  if (!view.ok()) return ToGrpc(view.status());
  for (const StepDurations& step : DurationsOf((*view)->Timeline())) {
    v1::StepDurations& proto = *response->add_steps();
    proto.set_step(step.step);
    proto.set_prepare_us(step.prepare_us);
    proto.set_commit_us(step.commit_us);
    proto.set_apply_us(step.apply_us);
    proto.set_reduce_us(step.reduce_us);
    proto.set_update_us(step.update_us);
    proto.set_publish_us(step.publish_us);
    proto.set_buckets(step.updated_buckets);
  }
  return grpc::Status::OK;
}

}  // namespace optshard
