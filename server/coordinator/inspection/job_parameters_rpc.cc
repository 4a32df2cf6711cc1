#include "server/coordinator/inspection/job_parameters_rpc.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/name_glob.h"
#include "common/page_token.h"
#include "common/state_format.h"
#include "common/utf8_prefix.h"
#include "server/coordinator/inspection/late_ranks.h"
#include "server/coordinator/inspection/parameter_page.h"
#include "server/coordinator/inspection/shard_descriptions_rpc.h"
#include "server/coordinator/inspection/slot_answers_rpc.h"
#include "server/coordinator/inspection/unanswered_rpc.h"
#include "server/shard/inspection/size_text.h"
#include "server/shard/inspection/slot_statistics.h"

namespace optshard {
namespace {

constexpr size_t kLongestNameInSummary = 200;
constexpr size_t kMostOwnersListed = 16;
constexpr int kMostOwnersOfAPage = 256;
constexpr size_t kMostRanksForGroups = 4;
constexpr size_t kPageBytes = 1 << 20;

std::string Of(const ParameterSpec& parameter) {
  return absl::StrFormat("%s %s [%s]", Utf8Prefix(parameter.name, kLongestNameInSummary),
                         NameOf(parameter.dtype), absl::StrJoin(parameter.shape, ", "));
}

absl::string_view MoreText(const std::string& next_page_token) {
  return next_page_token.empty() ? "the last ones" : "there are more";
}

std::string UnansweredText(int count) {
  if (count == 0) return "";
  return absl::StrCat("; ", count, count == 1 ? " owner has" : " owners have", " not answered");
}

template <typename Response>
void AddUnanswered(SlotAnswers& answers, Response& response) {
  for (v1::UnansweredOwner& owner : answers.unanswered) {
    *response.add_unanswered() = std::move(owner);
  }
}

v1::JobParameter Describe(const JobPlan& plan, int32_t number, const v1::ParameterPart* part) {
  const ParameterSpec& parameter = plan.space().parameter(number);
  v1::JobParameter proto;
  proto.set_parameter(number);
  proto.set_name(parameter.name);
  for (const int64_t extent : parameter.shape) proto.add_shape(extent);
  proto.set_dtype(static_cast<v1::DType>(parameter.dtype));
  proto.set_group(plan.space().group_of(number));
  proto.set_bytes(parameter.elements() * static_cast<int64_t>(SizeOf(parameter.dtype)));
  const std::vector<JobPlan::OwnerSlice>& owners = plan.owners[number];
  std::vector<Rank> ranks;
  for (const JobPlan::OwnerSlice& owner : owners) {
    if (ranks.empty() || ranks.back() != owner.rank) ranks.push_back(owner.rank);
    if (static_cast<size_t>(proto.owners_size()) == kMostOwnersListed) continue;
    v1::ParameterOwner& listed = *proto.add_owners();
    listed.set_rank(owner.rank);
    listed.set_offset_elements(owner.offset_elements);
    listed.set_elements(owner.elements);
  }
  proto.set_owner_count(static_cast<int32_t>(owners.size()));
  std::string slots = "its owner has not answered";
  if (part != nullptr) {
    proto.set_step(part->step());
    for (const v1::SlotPart& slot : part->slots()) proto.add_slots(slot.slot());
    slots = proto.slots_size() == 0 ? "no slots" : absl::StrJoin(proto.slots(), ", ");
  }
  proto.set_summary(absl::StrFormat(
      "%d %s step %d, %s, %s: %s", number, Of(parameter), proto.step(), SizeText(proto.bytes()),
      plan.plan.spec.policy == PartitionPolicy::kReplicated ? "all ranks" : RanksText(ranks),
      slots));
  return proto;
}

// One slot of one parameter, over all owners that have answered.
class SlotOfAll {
 public:
  explicit SlotOfAll(const v1::SlotPart& first)
      : name_(first.slot()), first_step_(first.first_step()), last_step_(first.last_step()) {}

  const std::string& name() const { return name_; }

  // By offset. Of a slot that every owner has as a whole, the first one counts.
  void Add(const v1::SlotPart& part) {
    if (part.is_whole() && added_) return;
    added_ = true;
    format_ = static_cast<StateFormat>(part.format());
    optshard::SlotStatistics statistics;
    statistics.elements = part.elements();
    statistics.zeros = part.zeros();
    statistics.non_finite = part.non_finite();
    statistics.sum = part.sum();
    statistics.sum_of_squares = part.sum_of_squares();
    statistics.min = part.min();
    statistics.max = part.max();
    statistics_.Add(statistics);
    first_step_ = std::min(first_step_, part.first_step());
    last_step_ = std::max(last_step_, part.last_step());
  }

  v1::SlotStatistics ToProto() const {
    v1::SlotStatistics proto;
    proto.set_slot(name_);
    proto.set_format(static_cast<v1::StateFormat>(format_));
    proto.set_elements(statistics_.elements);
    proto.set_norm(statistics_.norm());
    proto.set_mean(statistics_.mean());
    proto.set_min(statistics_.min);
    proto.set_max(statistics_.max);
    proto.set_zero_share(Share(statistics_.zeros));
    proto.set_non_finite_share(Share(statistics_.non_finite));
    proto.set_first_step(first_step_);
    proto.set_last_step(last_step_);
    proto.set_summary(Summary());
    return proto;
  }

 private:
  double Share(int64_t count) const {
    return statistics_.elements == 0
               ? 0
               : static_cast<double>(count) / static_cast<double>(statistics_.elements);
  }

  std::string Summary() const {
    std::string line =
        absl::StrFormat("%s %s: norm %.6g, mean %.6g, min %.6g, max %.6g, %.4g %% zeros, ", name_,
                        NameOf(format_), statistics_.norm(), statistics_.mean(), statistics_.min,
                        statistics_.max, 100 * Share(statistics_.zeros));
    if (statistics_.non_finite == 0) {
      absl::StrAppend(&line, "all finite");
    } else {
      absl::StrAppendFormat(&line, "%d of %d values (%.4g %%) not finite", statistics_.non_finite,
                            statistics_.elements, 100 * Share(statistics_.non_finite));
    }
    if (first_step_ == last_step_) {
      absl::StrAppend(&line, "; step ", first_step_);
    } else {
      absl::StrAppend(&line, "; of steps ", first_step_, " to ", last_step_);
    }
    return line;
  }

  std::string name_;
  bool added_ = false;
  StateFormat format_ = StateFormat::kFloat32;
  optshard::SlotStatistics statistics_;
  uint64_t first_step_;
  uint64_t last_step_;
};

v1::ParameterStatistics Statistics(const JobPlan& plan, int32_t number,
                                   const std::vector<v1::ParameterPart>& parts) {
  v1::ParameterStatistics proto;
  const ParameterSpec& parameter = plan.space().parameter(number);
  proto.set_parameter(number);
  proto.set_name(parameter.name);
  std::vector<SlotOfAll> slots;
  std::set<std::string> not_scanned;
  int64_t elements = 0;
  for (const v1::ParameterPart& part : parts) {
    elements += part.elements();
    for (const v1::SlotPart& slot : part.slots()) {
      if (slot.not_scanned()) {
        not_scanned.insert(slot.slot());
        continue;
      }
      const auto found = std::find_if(slots.begin(), slots.end(), [&](const SlotOfAll& known) {
        return known.name() == slot.slot();
      });
      if (found != slots.end()) {
        found->Add(slot);
        continue;
      }
      slots.emplace_back(slot);
      slots.back().Add(slot);
    }
  }
  for (const SlotOfAll& slot : slots) *proto.add_slots() = slot.ToProto();
  for (const std::string& slot : not_scanned) proto.add_not_scanned(slot);
  std::string line = absl::StrCat(number, " ", Of(parameter));
  if (elements < parameter.elements()) {
    absl::StrAppendFormat(&line, ", only %d of %d elements", elements, parameter.elements());
  }
  if (!parts.empty()) absl::StrAppend(&line, ", updated ", parts[0].step(), " times");
  if (!not_scanned.empty()) {
    absl::StrAppend(&line,
                    "; not all values were gone through of: ", absl::StrJoin(not_scanned, ", "));
  }
  proto.set_summary(line);
  return proto;
}

}  // namespace

absl::StatusOr<v1::ListJobParametersResponse> ListJobParameters(
    const JobView& view, const v1::ListJobParametersRequest& request,
    const CallPatience& patience) {
  const absl::StatusOr<int> page_size = PageSize(request.page_size(), 100, 500);
  if (!page_size.ok()) return page_size.status();
  absl::StatusOr<ParameterPage> page =
      FindParameterPage(*view.plan, {request.name(), request.page_token(), "ListParameters",
                                     *page_size, kMostOwnersOfAPage, patience.ended});
  if (!page.ok()) return page.status();
  SlotQuestion question;
  question.parameters = page->parameters;
  SlotAnswers answers = AskAboutSlots(view, question, patience);
  v1::ListJobParametersResponse response;
  for (const int32_t number : page->parameters) {
    const auto found = answers.parts.find(number);
    const v1::ParameterPart* part = found == answers.parts.end() ? nullptr : &found->second.front();
    *response.add_parameters() = Describe(*view.plan, number, part);
  }
  response.set_next_page_token(page->next_page_token);
  AddUnanswered(answers, response);
  response.set_summary(absl::StrFormat(
      "optimizer %s has %d parameters, %d elements; this page has %d, %s%s", view.status.optimizer,
      view.status.parameter_count, view.status.total_elements, response.parameters_size(),
      MoreText(page->next_page_token), UnansweredText(answers.unanswered_count)));
  return response;
}

absl::StatusOr<v1::GetStatisticsResponse> GetStatistics(const JobView& view,
                                                        const v1::GetStatisticsRequest& request,
                                                        const CallPatience& patience) {
  const absl::StatusOr<int> page_size = PageSize(request.page_size(), 20, 100);
  if (!page_size.ok()) return page_size.status();
  const absl::Status valid = CheckGlob("slot", request.slot());
  if (!valid.ok()) return valid;
  absl::StatusOr<ParameterPage> page =
      FindParameterPage(*view.plan, {request.name(), request.page_token(), "GetStatistics",
                                     *page_size, kMostOwnersOfAPage, patience.ended});
  if (!page.ok()) return page.status();
  SlotQuestion question;
  question.parameters = page->parameters;
  question.slot = request.slot();
  question.statistics = true;
  question.all_owners = true;
  SlotAnswers answers = AskAboutSlots(view, question, patience);
  v1::GetStatisticsResponse response;
  response.set_next_page_token(page->next_page_token);
  std::string time_is_over;
  for (const int32_t number : page->parameters) {
    v1::ParameterStatistics statistics = Statistics(*view.plan, number, answers.parts[number]);
    // The first one is returned in any case: so every page comes further.
    if (!time_is_over.empty() ||
        (statistics.not_scanned_size() > 0 && response.parameters_size() > 0)) {
      response.set_next_page_token(PageToken(number));
      if (time_is_over.empty()) time_is_over = "; the time was over: go on with the next page";
      break;
    }
    if (statistics.not_scanned_size() > 0) {
      time_is_over = absl::StrCat("; the time was over before all of parameter ", number,
                                  " was gone through: ask for one of its slots at a time");
    }
    *response.add_parameters() = std::move(statistics);
  }
  AddUnanswered(answers, response);
  response.set_summary(absl::StrFormat("slots of %d parameters, %s%s%s", response.parameters_size(),
                                       MoreText(response.next_page_token()), time_is_over,
                                       UnansweredText(answers.unanswered_count)));
  return response;
}

absl::StatusOr<v1::ListGroupsResponse> ListGroups(const JobView& view,
                                                  const v1::ListGroupsRequest& request,
                                                  const CallPatience& patience) {
  const absl::StatusOr<int> page_size = PageSize(request.page_size(), 100, 500);
  if (!page_size.ok()) return page_size.status();
  const absl::StatusOr<int64_t> first = ParsePageToken(request.page_token(), "ListGroups");
  if (!first.ok()) return first.status();
  const std::vector<GroupSpec>& groups = view.plan->space().groups();
  const auto count = static_cast<int64_t>(groups.size());
  if (*first >= count) return ForeignPageToken(request.page_token(), "ListGroups");

  // All have the same. At once: one that hangs keeps nobody from answering.
  std::vector<OwnerToAsk> owners;
  for (size_t rank = 0; rank < view.status.members.size() && rank < kMostRanksForGroups; ++rank) {
    owners.push_back({static_cast<Rank>(rank), view.owner_address(static_cast<Rank>(rank))});
  }
  const std::vector<absl::StatusOr<v1::ShardDescription>> answers =
      DescribeShards(view, owners, patience);
  const auto told =
      std::find_if(answers.begin(), answers.end(), [](const auto& answer) { return answer.ok(); });
  if (told == answers.end()) {
    return absl::UnavailableError(absl::StrCat(
        "none of the first ranks says what the hyperparameters are; the first of them: ",
        answers.empty() ? "there is none" : answers.front().status().message()));
  }
  v1::ListGroupsResponse response;
  int64_t next = *first;
  size_t bytes = 0;
  for (; next < count && response.groups_size() < *page_size && bytes < kPageBytes; ++next) {
    v1::JobGroup& group = *response.add_groups();
    group.set_group(static_cast<int32_t>(next));
    group.set_rule(view.plan->plan.spec.rules[next].name);
    group.set_parameters(static_cast<int32_t>(groups[next].parameters.size()));
    int64_t elements = 0;
    for (const ParameterSpec& parameter : groups[next].parameters) elements += parameter.elements();
    group.set_elements(elements);
    if (next < (*told)->groups_size()) {
      group.set_hyperparameters((*told)->groups(static_cast<int>(next)).hyperparameters());
    }
    group.set_summary(absl::StrFormat("group %d: %s, %d parameters, %d elements", next,
                                      group.rule(), group.parameters(), elements));
    bytes += group.ByteSizeLong();
  }
  if (next < count) response.set_next_page_token(PageToken(next));
  response.set_summary(absl::StrFormat(
      "optimizer %s has %d groups; this page has %d, %s; hyperparameters are those of rank %d at "
      "step %d",
      view.status.optimizer, count, response.groups_size(), MoreText(response.next_page_token()),
      (*told)->rank(), (*told)->progress().finished_step()));
  return response;
}

}  // namespace optshard
