#include "server/coordinator/inspection/slot_answers_rpc.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/state_format.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/inspection/unanswered_rpc.h"

namespace optshard {
namespace {

// A parameter may be cut over thousands of owners, and each may have a long error.
constexpr size_t kMostUnansweredListed = 64;

bool IsSound(const v1::ParameterPart& part, const v1::SlotPart& slot, bool statistics) {
  if (slot.elements() < 0 || slot.zeros() < 0 || slot.non_finite() < 0) return false;
  if (!slot.is_whole() && slot.elements() != part.elements()) return false;
  if (slot.first_step() > slot.last_step()) return false;
  if (slot.zeros() > slot.elements() - std::min(slot.elements(), slot.non_finite())) return false;
  return !statistics || IsKnown(static_cast<StateFormat>(slot.format()));
}

// Whether the part is the owner's by the plan.
bool IsOwned(const JobPlan& plan, Rank rank, const v1::ParameterPart& part) {
  if (part.parameter() < 0 || part.parameter() >= plan.space().parameter_count()) return false;
  const auto& owners = plan.owners[part.parameter()];
  return std::any_of(owners.begin(), owners.end(), [&](const JobPlan::OwnerSlice& owner) {
    return owner.rank == rank && owner.offset_elements == part.offset_elements() &&
           owner.elements == part.elements();
  });
}

bool IsAsked(const SlotQuestion& question, int32_t parameter) {
  return std::binary_search(question.parameters.begin(), question.parameters.end(), parameter);
}

// Each part and each slot counts once.
absl::Status CheckAnswer(const JobPlan& plan, Rank rank, const SlotQuestion& question,
                         const v1::DescribeSlotsResponse& answer) {
  if (answer.generation() != plan.generation()) {
    return absl::AbortedError(
        absl::StrFormat("it is of generation %d, expected %d; param groups were added or ranks "
                        "joined anew: ask again",
                        answer.generation(), plan.generation()));
  }
  std::set<std::pair<int32_t, int64_t>> parts;
  for (const v1::ParameterPart& part : answer.parts()) {
    bool sound = IsOwned(plan, rank, part) && IsAsked(question, part.parameter()) &&
                 parts.emplace(part.parameter(), part.offset_elements()).second;
    std::set<absl::string_view> slots;
    for (const v1::SlotPart& slot : part.slots()) {
      sound = sound && IsSound(part, slot, question.statistics) && slots.insert(slot.slot()).second;
    }
    if (sound) continue;
    return absl::InternalError(absl::StrFormat(
        "what it says of elements [%d, %d) of parameter %d does not fit the plan",
        part.offset_elements(), part.offset_elements() + part.elements(), part.parameter()));
  }
  return absl::OkStatus();
}

}  // namespace

SlotAnswers AskAboutSlots(const JobView& view, const SlotQuestion& question,
                          const CallPatience& patience) {
  std::map<Rank, v1::DescribeSlotsRequest> by_rank;
  for (const int32_t parameter : question.parameters) {
    for (const JobPlan::OwnerSlice& owner : view.plan->owners[parameter]) {
      v1::DescribeSlotsRequest& request = by_rank[owner.rank];
      const int size = request.parameters_size();
      if (size == 0 || request.parameters(size - 1) != parameter) {
        request.add_parameters(parameter);
      }
      if (!question.all_owners) break;
    }
  }
  std::vector<OwnerToAsk> owners;
  std::vector<v1::DescribeSlotsRequest> requests;
  for (auto& [rank, request] : by_rank) {
    request.set_optimizer(view.status.optimizer);
    request.set_rank(rank);
    request.set_slot(question.slot);
    request.set_statistics(question.statistics);
    owners.push_back({rank, view.owner_address(rank)});
    requests.push_back(std::move(request));
  }
  const std::vector<absl::StatusOr<v1::DescribeSlotsResponse>> answers =
      AskOwners<v1::ShardInspection>(
          absl::MakeConstSpan(owners), absl::MakeConstSpan(requests),
          static_cast<void (v1::ShardInspection::StubInterface::async_interface::*)(
              grpc::ClientContext*, const v1::DescribeSlotsRequest*, v1::DescribeSlotsResponse*,
              std::function<void(grpc::Status)>)>(
              &v1::ShardInspection::StubInterface::async_interface::DescribeSlots),
          patience);
  SlotAnswers result;
  for (size_t i = 0; i < owners.size(); ++i) {
    absl::Status status = answers[i].status();
    if (status.ok()) status = CheckAnswer(*view.plan, owners[i].rank, question, *answers[i]);
    if (!status.ok()) {
      if (result.unanswered.size() < kMostUnansweredListed) {
        result.unanswered.push_back(Unanswered(owners[i], status));
      }
      ++result.unanswered_count;
      continue;
    }
    for (const v1::ParameterPart& part : answers[i]->parts()) {
      result.parts[part.parameter()].push_back(part);
    }
  }
  for (auto& entry : result.parts) {
    std::sort(entry.second.begin(), entry.second.end(), [](const auto& a, const auto& b) {
      return a.offset_elements() < b.offset_elements();
    });
  }
  return result;
}

}  // namespace optshard
