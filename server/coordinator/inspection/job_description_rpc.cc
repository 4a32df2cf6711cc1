#include "server/coordinator/inspection/job_description_rpc.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/membership/common_proto.h"
#include "common/page_token.h"
#include "server/coordinator/inspection/late_ranks.h"
#include "server/coordinator/inspection/shard_descriptions_rpc.h"
#include "server/coordinator/inspection/unanswered_rpc.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr char kDescribeJob[] = "DescribeJob";
constexpr int kUsualPage = 32;
constexpr int kLargestPage = 256;
constexpr int kMostRanksNamed = 8;

using Answers = std::vector<absl::StatusOr<v1::ShardDescription>>;

std::string DurationText(int64_t microseconds) {
  if (microseconds < 1000) return absl::StrFormat("%d us", microseconds);
  if (microseconds < 1000000) return absl::StrFormat("%.1f ms", microseconds / 1e3);
  return absl::StrFormat("%.1f s", microseconds / 1e6);
}

v1::Evenness EvennessOf(absl::string_view what,
                        const std::vector<std::pair<Rank, int64_t>>& bytes_of_ranks) {
  v1::Evenness evenness;
  if (bytes_of_ranks.empty()) return evenness;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto least = std::min_element(bytes_of_ranks.begin(), bytes_of_ranks.end(), fewer);
  const auto most = std::max_element(bytes_of_ranks.begin(), bytes_of_ranks.end(), fewer);
  double sum = 0;
  for (const auto& entry : bytes_of_ranks) sum += static_cast<double>(entry.second);
  const double mean = sum / static_cast<double>(bytes_of_ranks.size());
  evenness.set_min_bytes(least->second);
  evenness.set_min_rank(least->first);
  evenness.set_max_bytes(most->second);
  evenness.set_max_rank(most->first);
  evenness.set_max_over_mean(mean == 0 ? 1 : static_cast<double>(most->second) / mean);
  evenness.set_summary(
      absl::StrFormat("%s a rank: %s (rank %d) to %s (rank %d), the largest %.3f of the mean", what,
                      SizeText(least->second), least->first, SizeText(most->second), most->first,
                      evenness.max_over_mean()));
  return evenness;
}

// How far all ranks are: those that have answered just now, the others when they last said so.
std::vector<RankProgress> ProgressOf(const JobView& view, Rank first, const Answers& answers) {
  std::vector<RankProgress> all;
  for (const MemberStatus& member : view.status.members) {
    RankProgress progress = {member.rank, member.progress, member.silent_for};
    // Whoever is not there comes at no time.
    if (member.state != MemberState::kActive) progress.age = absl::ZeroDuration();
    const int64_t asked = member.rank - first;
    if (asked >= 0 && asked < static_cast<int64_t>(answers.size()) && answers[asked].ok()) {
      const absl::StatusOr<StepProgress> told = FromProto(answers[asked]->progress());
      if (told.ok()) progress = {member.rank, *told, absl::ZeroDuration()};
    }
    all.push_back(progress);
  }
  return all;
}

std::string PhaseText(v1::RankPhase phase, int64_t microseconds) {
  const std::string lasts = DurationText(microseconds);
  switch (phase) {
    case v1::RANK_PHASE_IDLE:
      return absl::StrCat("idle for ", lasts, " (its trainer computes)");
    case v1::RANK_PHASE_PREPARE:
      return absl::StrCat("gathering gradients for ", lasts);
    case v1::RANK_PHASE_COMMIT:
      return absl::StrCat("voted ", lasts, " ago");
    case v1::RANK_PHASE_APPLY:
      return absl::StrCat("applying for ", lasts);
    default:
      return absl::StrCat("in an unknown phase for ", lasts);
  }
}

std::string Summary(const v1::RankDescription& rank, const MemberStatus& member,
                    const std::vector<Rank>& behind, bool answered, bool in_step, int of) {
  std::string line = absl::StrFormat("rank %d %s: ", rank.rank(), NameOf(member.state));
  absl::StrAppend(&line, in_step ? "in step " : "finished step ",
                  rank.finished_step() + (in_step ? 1 : 0));
  if (rank.torn()) {
    absl::StrAppend(&line, ", torn: its state is that of no step");
  } else if (answered) {
    absl::StrAppend(&line, ", ", PhaseText(rank.phase(), rank.phase_us()));
  } else {
    absl::StrAppendFormat(&line, " when last heard from, %s ago",
                          DurationText(absl::ToInt64Microseconds(member.silent_for)));
  }
  if (!behind.empty()) absl::StrAppend(&line, ", waits for ", RanksText(behind));
  absl::StrAppendFormat(&line, "; owns %d of %d parameters, %s", rank.owned_parameters(), of,
                        SizeText(rank.parameter_bytes()));
  if (answered) absl::StrAppend(&line, ", ", SizeText(rank.state_bytes()), " of state");
  return line;
}

// What the coordinator itself knows of ranks while others are awaited.
void AddForming(const JobView& view, Rank first, Rank end, v1::JobDescription* description) {
  for (Rank rank = first; rank < end; ++rank) {
    const MemberStatus& member = view.status.members[rank];
    v1::RankDescription& described = *description->add_ranks();
    described.set_rank(rank);
    described.set_state(std::string(NameOf(member.state)));
    described.set_finished_step(member.progress.finished);
    described.set_owner_address(member.owner_address);
    described.set_summary(optshard::Summary(member));
  }
}

// That the job is active does not mean that it can step.
void SayTorn(const JobView& view, v1::JobDescription* description) {
  std::vector<Rank> torn;
  for (const v1::RankDescription& rank : description->ranks()) {
    if (rank.torn()) torn.push_back(rank.rank());
  }
  description->set_torn(view.status.torn || !torn.empty());
  if (view.status.torn || torn.empty()) return;
  description->set_summary(absl::StrCat(
      description->summary(), "; torn: of ", RanksText(torn),
      " the state is that of no step, and each step is refused until all ranks load a checkpoint"));
}

}  // namespace

absl::StatusOr<v1::JobDescription> DescribeJob(const JobView& view,
                                               const v1::DescribeJobRequest& request,
                                               const CallPatience& patience) {
  const absl::StatusOr<int> page_size = PageSize(request.page_size(), kUsualPage, kLargestPage);
  if (!page_size.ok()) return page_size.status();
  const absl::StatusOr<int64_t> first = ParsePageToken(request.page_token(), kDescribeJob);
  if (!first.ok()) return first.status();
  const auto world_size = static_cast<int64_t>(view.status.members.size());
  if (*first >= world_size) return ForeignPageToken(request.page_token(), kDescribeJob);
  const int64_t end = std::min(world_size, *first + *page_size);

  v1::JobDescription description;
  description.set_summary(absl::StrCat("job ", view.job, ", optimizer ", Summary(view.status)));
  description.set_job(view.job);
  description.set_optimizer(view.status.optimizer);
  description.set_state(std::string(NameOf(view.status.state)));
  description.set_generation(view.status.generation);
  description.set_world_size(view.status.world_size);
  if (end < world_size) description.set_next_page_token(PageToken(end));

  if (view.plan == nullptr) {
    AddForming(view, static_cast<Rank>(*first), static_cast<Rank>(end), &description);
    return description;
  }
  std::vector<OwnerToAsk> owners;
  for (int64_t rank = *first; rank < end; ++rank) {
    owners.push_back({static_cast<Rank>(rank), view.owner_address(static_cast<Rank>(rank))});
  }
  const Answers answers = DescribeShards(view, owners, patience);
  const std::vector<RankProgress> progress = ProgressOf(view, static_cast<Rank>(*first), answers);
  std::vector<std::pair<Rank, int64_t>> state_bytes;
  for (size_t i = 0; i < owners.size(); ++i) {
    const Rank rank = owners[i].rank;
    const RankShare& share = view.plan->shares[rank];
    v1::RankDescription& described = *description.add_ranks();
    described.set_rank(rank);
    described.set_state(std::string(NameOf(view.status.members[rank].state)));
    described.set_finished_step(progress[rank].progress.finished);
    described.set_torn(progress[rank].progress.outcome == StepOutcome::kTorn);
    described.set_owned_parameters(share.parameters);
    described.set_owned_elements(share.elements);
    described.set_parameter_bytes(share.bytes);
    described.set_owner_address(owners[i].address);
    std::vector<Rank> behind;
    if (answers[i].ok()) {
      described.set_phase(answers[i]->phase());
      described.set_phase_us(answers[i]->phase_us());
      described.set_state_bytes(answers[i]->state_bytes());
      state_bytes.emplace_back(rank, answers[i]->state_bytes());
      behind = RanksBehind(progress[rank].progress, absl::Microseconds(answers[i]->phase_us()),
                           progress);
    } else {
      *description.add_unanswered() = Unanswered(owners[i], answers[i].status());
    }
    described.set_waits_for_count(static_cast<int32_t>(behind.size()));
    for (size_t b = 0; b < behind.size() && b < kMostRanksNamed; ++b) {
      described.add_waits_for(behind[b]);
    }
    described.set_summary(Summary(described, view.status.members[rank], behind, answers[i].ok(),
                                  progress[rank].progress.outcome == StepOutcome::kInStep,
                                  view.plan->space().parameter_count()));
  }
  SayTorn(view, &description);
  std::vector<std::pair<Rank, int64_t>> parameter_bytes;
  for (const RankShare& share : view.plan->shares) {
    parameter_bytes.emplace_back(static_cast<Rank>(parameter_bytes.size()), share.bytes);
  }
  *description.mutable_parameters() = EvennessOf("parameters", parameter_bytes);
  *description.mutable_slots() = EvennessOf("state", state_bytes);
  return description;
}

}  // namespace optshard
