#include "server/coordinator/inspection/job_steps_rpc.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/inspection/unanswered_rpc.h"

namespace optshard {
namespace {

constexpr int kUsualRanks = 4;
constexpr int kMostRanks = 16;
constexpr int kUsualSteps = 5;

absl::StatusOr<std::vector<OwnerToAsk>> Chosen(const JobView& view,
                                               const v1::ListStepsRequest& request) {
  if (request.ranks_size() > kMostRanks || request.steps() < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d ranks, %d steps: expected at most %d ranks, and a number of steps that "
                        "is not negative",
                        request.ranks_size(), request.steps(), kMostRanks));
  }
  const auto world_size = static_cast<Rank>(view.status.members.size());
  std::vector<Rank> ranks(request.ranks().begin(), request.ranks().end());
  for (Rank rank = 0; request.ranks_size() == 0 && rank < std::min(kUsualRanks, world_size);
       ++rank) {
    ranks.push_back(rank);
  }
  std::vector<OwnerToAsk> owners;
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rank %d is none of the job's: it has 0 to %d", rank, world_size - 1));
    }
    owners.push_back({rank, view.owner_address(rank)});
  }
  return owners;
}

double Milliseconds(int64_t microseconds) { return static_cast<double>(microseconds) / 1e3; }

std::string Row(Rank rank, const v1::StepDurations& step) {
  const double prepare = Milliseconds(step.prepare_us());
  const double commit = Milliseconds(step.commit_us());
  const double apply = Milliseconds(step.apply_us());
  return absl::StrFormat("%8d %5d %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %8d", step.step(), rank,
                         prepare, commit, apply, prepare + commit + apply,
                         Milliseconds(step.reduce_us()), Milliseconds(step.update_us()),
                         Milliseconds(step.publish_us()), step.buckets());
}

}  // namespace

absl::StatusOr<v1::ListStepsResponse> ListSteps(const JobView& view,
                                                const v1::ListStepsRequest& request,
                                                const CallPatience& patience) {
  const absl::StatusOr<std::vector<OwnerToAsk>> owners = Chosen(view, request);
  if (!owners.ok()) return owners.status();
  std::vector<v1::ListShardStepsRequest> requests(owners->size());
  for (size_t i = 0; i < owners->size(); ++i) view.SetOwner((*owners)[i].rank, requests[i]);
  const std::vector<absl::StatusOr<v1::ListShardStepsResponse>> answers =
      AskOwners<v1::ShardInspection>(
          absl::MakeConstSpan(*owners), absl::MakeConstSpan(requests),
          static_cast<void (v1::ShardInspection::StubInterface::async_interface::*)(
              grpc::ClientContext*, const v1::ListShardStepsRequest*, v1::ListShardStepsResponse*,
              std::function<void(grpc::Status)>)>(
              &v1::ShardInspection::StubInterface::async_interface::ListSteps),
          patience);
  const int steps = request.steps() == 0 ? kUsualSteps : request.steps();
  v1::ListStepsResponse response;
  std::vector<std::pair<Rank, v1::StepDurations>> rows;
  for (size_t i = 0; i < owners->size(); ++i) {
    if (!answers[i].ok()) {
      *response.add_unanswered() = Unanswered((*owners)[i], answers[i].status());
      continue;
    }
    const int first = std::max(0, answers[i]->steps_size() - steps);
    for (int s = first; s < answers[i]->steps_size(); ++s) {
      rows.emplace_back((*owners)[i].rank, answers[i]->steps(s));
    }
  }
  // Steps that were tried again stay in their order.
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.step() != b.second.step() ? a.second.step() < b.second.step()
                                              : a.first < b.first;
  });
  response.set_summary(absl::StrFormat("the last steps of %d of %d ranks, in milliseconds",
                                       owners->size() - response.unanswered_size(),
                                       view.status.members.size()));
  if (rows.empty()) return response;
  response.add_table(absl::StrFormat("%8s %5s %9s %9s %9s %9s %9s %9s %9s %8s", "step", "rank",
                                     "prepare", "commit", "apply", "in all", "reduce", "update",
                                     "publish", "buckets"));
  for (const auto& row : rows) response.add_table(Row(row.first, row.second));
  return response;
}

}  // namespace optshard
