#include "server/coordinator/inspection/slot_answers_rpc.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/state_format.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/inspection/unanswered_rpc.h"

namespace optshard {
namespace {

// A parameter may be cut over thousands of owners, and each may have a long error.
constexpr size_t kMostUnansweredListed = 64;
constexpr Rank kMostAlternatives = 4;

bool IsSound(const v1::ParameterPart& part, const v1::SlotPart& slot, bool statistics) {
  if (slot.elements() < 0 || slot.zeros() < 0 || slot.non_finite() < 0) return false;
  if (!slot.is_whole() && slot.elements() != part.elements()) return false;
  if (slot.first_step() > slot.last_step()) return false;
  if (slot.zeros() > slot.elements() - std::min(slot.elements(), slot.non_finite())) return false;
  return !statistics || slot.not_scanned() || IsKnown(static_cast<StateFormat>(slot.format()));
}

// Whether the part is the owner's by the plan.
bool IsOwned(const JobPlan& plan, Rank rank, const v1::ParameterPart& part) {
  if (part.parameter() < 0 || part.parameter() >= plan.space().parameter_count()) return false;
  const auto& owners = plan.owners[part.parameter()];  // where all own all: one
  return std::any_of(owners.begin(), owners.end(), [&](const JobPlan::OwnerSlice& owner) {
    return (owner.rank == rank || plan.is_replicated()) &&
           owner.offset_elements == part.offset_elements() && owner.elements == part.elements();
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

// The ranks that know all of the parameter that a question wants, in the order in which they are
// asked.
std::vector<Rank> Alternatives(const JobView& view, int32_t parameter) {
  std::vector<Rank> ranks;
  if (view.plan->is_replicated()) {
    const auto world_size = static_cast<Rank>(view.status.members.size());
    for (Rank rank = 0; rank < std::min(world_size, kMostAlternatives); ++rank) {
      ranks.push_back(rank);
    }
    return ranks;
  }
  for (const JobPlan::OwnerSlice& owner : view.plan->owners[parameter]) {
    if (std::find(ranks.begin(), ranks.end(), owner.rank) != ranks.end()) continue;
    ranks.push_back(owner.rank);
    if (static_cast<Rank>(ranks.size()) == kMostAlternatives) break;
  }
  return ranks;
}

class Asking {
 public:
  Asking(const JobView& view, const SlotQuestion& question, const CallPatience& patience)
      : view_(view), question_(question), patience_(patience) {}

  SlotAnswers Ask() {
    std::map<Rank, std::vector<int32_t>> by_rank;
    const bool one_is_enough = !question_.all_owners || view_.plan->is_replicated();
    for (const int32_t parameter : question_.parameters) {
      if (one_is_enough) {
        pending_.insert(parameter);
        continue;
      }
      for (const JobPlan::OwnerSlice& owner : view_.plan->owners[parameter]) {
        std::vector<int32_t>& asked = by_rank[owner.rank];
        if (asked.empty() || asked.back() != parameter) asked.push_back(parameter);
      }
    }
    if (one_is_enough) by_rank = NextAlternatives();
    while (!by_rank.empty()) {
      AskRanks(by_rank);
      by_rank = NextAlternatives();
    }
    for (auto& entry : result_.parts) {
      std::sort(entry.second.begin(), entry.second.end(), [](const auto& a, const auto& b) {
        return a.offset_elements() < b.offset_elements();
      });
    }
    return std::move(result_);
  }

 private:
  // Whom to ask about what nobody has told yet.
  std::map<Rank, std::vector<int32_t>> NextAlternatives() const {
    std::map<Rank, std::vector<int32_t>> by_rank;
    for (const int32_t parameter : pending_) {
      for (const Rank rank : Alternatives(view_, parameter)) {
        if (asked_.count(rank) > 0) continue;
        by_rank[rank].push_back(parameter);
        break;
      }
    }
    return by_rank;
  }

  void AskRanks(const std::map<Rank, std::vector<int32_t>>& by_rank) {
    std::vector<OwnerToAsk> owners;
    std::vector<v1::DescribeSlotsRequest> requests;
    for (const auto& [rank, parameters] : by_rank) {
      v1::DescribeSlotsRequest request;
      view_.SetOwner(rank, request);
      request.mutable_parameters()->Assign(parameters.begin(), parameters.end());
      request.set_slot(question_.slot);
      request.set_statistics(question_.statistics);
      owners.push_back({rank, view_.owner_address(rank)});
      requests.push_back(std::move(request));
      asked_.insert(rank);
    }
    const std::vector<absl::StatusOr<v1::DescribeSlotsResponse>> answers =
        AskOwners<v1::ShardInspection>(
            absl::MakeConstSpan(owners), absl::MakeConstSpan(requests),
            static_cast<void (v1::ShardInspection::StubInterface::async_interface::*)(
                grpc::ClientContext*, const v1::DescribeSlotsRequest*, v1::DescribeSlotsResponse*,
                std::function<void(grpc::Status)>)>(
                &v1::ShardInspection::StubInterface::async_interface::DescribeSlots),
            PatienceNow());
    for (size_t i = 0; i < owners.size(); ++i) {
      absl::Status status = answers[i].status();
      if (status.ok()) status = CheckAnswer(*view_.plan, owners[i].rank, question_, *answers[i]);
      if (status.ok()) {
        Take(owners[i].rank, *answers[i]);
        continue;
      }
      if (result_.unanswered.size() < kMostUnansweredListed) {
        result_.unanswered.push_back(Unanswered(owners[i], status));
      }
      ++result_.unanswered_count;
    }
  }

  // Half of the time that is left, where others could be asked after them.
  CallPatience PatienceNow() const {
    CallPatience patience = patience_;
    if (NextAlternatives().empty()) return patience;
    const absl::Time now = Clock::Monotonic().Now();
    patience.deadline = now + (patience.deadline - now) / 2;
    return patience;
  }

  void Take(Rank rank, const v1::DescribeSlotsResponse& answer) {
    for (const v1::ParameterPart& part : answer.parts()) {
      std::vector<v1::ParameterPart>& parts = result_.parts[part.parameter()];
      if (parts.empty() || part.offset_elements() < parts.front().offset_elements()) {
        result_.first_ranks[part.parameter()] = rank;
      }
      parts.push_back(part);
      pending_.erase(part.parameter());
    }
  }

  const JobView& view_;
  const SlotQuestion& question_;
  const CallPatience& patience_;
  std::set<int32_t> pending_;  // of which one owner is to tell, and none has
  std::set<Rank> asked_;
  SlotAnswers result_;
};

}  // namespace

SlotAnswers AskAboutSlots(const JobView& view, const SlotQuestion& question,
                          const CallPatience& patience) {
  return Asking(view, question, patience).Ask();
}

}  // namespace optshard
