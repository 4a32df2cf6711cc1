#include "server/shard/inspection/shard_inspection_service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/name_glob.h"
#include "common/parameter_space.h"
#include "common/rpc/status_rpc.h"
#include "server/shard/inspection/slot_scan.h"
#include "server/shard/inspection/step_durations.h"
#include "server/shard/inspection/view_of_request.h"

namespace optshard {
namespace {

constexpr int kMostParameters = 1000;
constexpr absl::Duration kLongestScan = absl::Minutes(1);
// Of the client's own time, so that it gets what was gone through by then.
constexpr double kShareOfTheClients = 0.8;

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

std::vector<SlotScanRange> RangesOf(const v1::DescribeSlotsResponse& response) {
  std::vector<SlotScanRange> ranges;
  for (const v1::ParameterPart& part : response.parts()) {
    for (const v1::SlotPart& slot : part.slots()) {
      ranges.push_back({part.parameter(), slot.slot(), slot.is_whole() ? 0 : part.offset_elements(),
                        slot.elements()});
    }
  }
  return ranges;
}

// `scans` are of the first slots.
void SetStatistics(const std::vector<SlotScan>& scans, v1::DescribeSlotsResponse* response) {
  size_t next = 0;
  for (v1::ParameterPart& part : *response->mutable_parts()) {
    for (v1::SlotPart& slot : *part.mutable_slots()) {
      if (next == scans.size()) {
        slot.set_not_scanned(true);
        continue;
      }
      const SlotScan& scan = scans[next++];
      slot.set_format(static_cast<v1::StateFormat>(scan.format));
      slot.set_sum(scan.statistics.sum);
      slot.set_sum_of_squares(scan.statistics.sum_of_squares);
      slot.set_min(scan.statistics.min);
      slot.set_max(scan.statistics.max);
      slot.set_zeros(scan.statistics.zeros);
      slot.set_non_finite(scan.statistics.non_finite);
      slot.set_first_step(scan.first_step);
      slot.set_last_step(scan.last_step);
    }
  }
}

}  // namespace

grpc::Status ShardInspectionService::DescribeSlots(grpc::ServerContext* context,
                                                   const v1::DescribeSlotsRequest* request,
                                                   v1::DescribeSlotsResponse* response) {
  absl::Status status = CheckRequest(*request);
  if (status.ok()) status = Describe(*request, response);
  if (!status.ok() || !request->statistics()) return ToGrpc(status);
  const absl::Duration left =
      absl::FromChrono(context->deadline() - std::chrono::system_clock::now());
  const absl::Time end =
      Clock::Monotonic().Now() + std::min(kLongestScan, kShareOfTheClients * left);
  const absl::StatusOr<std::vector<SlotScan>> scans = scans_.Scan(
      Selected(*request), RangesOf(*response), end, [context] { return context->IsCancelled(); });
  if (scans.ok()) SetStatistics(*scans, response);
  return ToGrpc(scans.status());
}

absl::Status ShardInspectionService::Describe(const v1::DescribeSlotsRequest& request,
                                              v1::DescribeSlotsResponse* response) {
  const absl::StatusOr<ShardViewRegistry::Use> view = FindMember(*views_, request);
  if (!view.ok()) return view.status();
  response->set_generation((*view)->Describe().generation);
  for (const int32_t parameter : request.parameters()) {
    for (const OwnedSlice& slice : (*view)->SlicesOf(parameter)) {
      AddPart(slice, request.slot(), response);
    }
  }
  return absl::OkStatus();
}

grpc::Status ShardInspectionService::ListSteps(grpc::ServerContext*,
                                               const v1::ListShardStepsRequest* request,
                                               v1::ListShardStepsResponse* response) {
  const absl::StatusOr<ShardViewRegistry::Use> view = FindMember(*views_, *request);
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
