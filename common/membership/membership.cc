#include "common/membership/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/incarnation.h"

namespace optshard {
namespace {

constexpr size_t kShownRanks = 16;

std::string Of(const StepProgress& progress) {
  switch (progress.outcome) {
    case StepOutcome::kIdle:
      return absl::StrCat("finished step ", progress.finished);
    case StepOutcome::kInStep:
      return absl::StrCat("in step ", progress.finished + 1);
    case StepOutcome::kNotApplied:
      return absl::StrCat("finished step ", progress.finished, ", step ", progress.finished + 1,
                          " failed and was not applied");
    case StepOutcome::kInDoubt:
      return absl::StrCat("finished step ", progress.finished, ", step ", progress.finished + 1,
                          " is in doubt");
    case StepOutcome::kTorn:
      return absl::StrCat("finished step ", progress.finished, ", step ", progress.finished + 1,
                          " is torn");
    case StepOutcome::kApplied:
      return absl::StrCat("finished step ", progress.finished, ", step ", progress.finished + 1,
                          " is applied here");
    case StepOutcome::kRefusing:
      return absl::StrCat("finished step ", progress.finished, ", refuses step ",
                          progress.finished + 1, ", has no trainer for it");
  }
  return "in a step of unknown outcome";
}

std::string Count(size_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace

JoinRequest WithoutSpec(const JoinRequest& request) {
  JoinRequest without = request;
  without.spec_digest = request.spec.Digest();
  without.spec = OptimizerSpec();
  without.spec.world_size = request.spec.world_size;
  return without;
}

absl::string_view NameOf(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::kIdle:
      return "idle";
    case StepOutcome::kInStep:
      return "in step";
    case StepOutcome::kNotApplied:
      return "not applied";
    case StepOutcome::kInDoubt:
      return "in doubt";
    case StepOutcome::kTorn:
      return "torn";
    case StepOutcome::kApplied:
      return "applied";
    case StepOutcome::kRefusing:
      return "refusing";
  }
  return "unknown";
}

StepNumber AppliedStep(const StepProgress& progress) {
  return progress.finished + (progress.outcome == StepOutcome::kApplied ? 1 : 0);
}

CallNumber LastCall(const StepProgress& progress) { return progress.finished + progress.skipped; }

bool IsOpen(StepOutcome outcome) {
  return outcome == StepOutcome::kInDoubt || outcome == StepOutcome::kTorn ||
         outcome == StepOutcome::kApplied;
}

absl::string_view NameOf(MemberState state) {
  switch (state) {
    case MemberState::kMissing:
      return "missing";
    case MemberState::kJoined:
      return "joined";
    case MemberState::kActive:
      return "active";
    case MemberState::kLeft:
      return "left";
    case MemberState::kLost:
      return "lost";
  }
  return "unknown";
}

absl::string_view NameOf(GroupState state) {
  switch (state) {
    case GroupState::kForming:
      return "forming";
    case GroupState::kActive:
      return "active";
    case GroupState::kFailed:
      return "failed";
    case GroupState::kFinished:
      return "finished";
  }
  return "unknown";
}

std::string Summary(const MemberStatus& member) {
  std::string line = absl::StrCat("rank ", member.rank, " ", NameOf(member.state));
  if (member.state == MemberState::kMissing) return line;
  absl::StrAppend(&line, ": ", Of(member.progress), "; pid ", member.pid);
  if (!member.node.empty()) absl::StrAppend(&line, " on ", member.node);
  absl::StrAppend(&line, ", incarnation ", IncarnationText(member.incarnation));
  if (!member.owner_address.empty()) absl::StrAppend(&line, ", owner at ", member.owner_address);
  if (member.state != MemberState::kLeft) {
    absl::StrAppendFormat(&line, ", heard from %.1f s ago",
                          absl::ToDoubleSeconds(member.silent_for));
  }
  return line;
}

std::string Summary(const GroupStatus& group) {
  std::string line = absl::StrFormat("%s %s: ", group.optimizer, NameOf(group.state));
  size_t present = 0;
  std::vector<Rank> missing;
  StepNumber least = 0;
  bool first = true;
  for (const MemberStatus& member : group.members) {
    if (member.state == MemberState::kMissing) {
      missing.push_back(member.rank);
      continue;
    }
    if (member.state != MemberState::kLost) ++present;
    if (first || member.progress.finished < least) least = member.progress.finished;
    first = false;
  }
  if (group.state == GroupState::kForming) {
    const size_t shown = std::min(missing.size(), kShownRanks);
    absl::StrAppend(&line, present, " of ", Count(group.world_size, "rank"),
                    " joined, waiting for rank ",
                    absl::StrJoin(missing.begin(), missing.begin() + shown, ", "));
    if (missing.size() > shown) {
      absl::StrAppend(&line, " and ", missing.size() - shown, " more");
    }
  } else {
    absl::StrAppend(&line, Count(group.world_size, "rank"), ", step ", least, ", generation ",
                    group.generation);
  }
  absl::StrAppend(&line, "; ", group.rules, ", ", NameOf(group.policy), ", ",
                  Count(group.parameter_count, "parameter"), ", ",
                  Count(group.total_elements, "element"));
  if (!group.failure.ok()) {
    absl::StrAppend(&line, "; ", group.torn ? "torn, " : "", group.failure.message());
  }
  return line;
}

std::string Summary(const JobStatus& job) {
  if (job.groups.empty()) return absl::StrCat("job ", job.job, ": nobody has joined yet");
  std::vector<std::string> groups;
  groups.reserve(job.groups.size());
  for (const GroupStatus& group : job.groups) {
    groups.push_back(absl::StrCat(group.optimizer, " ", NameOf(group.state)));
  }
  return absl::StrCat("job ", job.job, ": ", Count(job.groups.size(), "optimizer"), " (",
                      absl::StrJoin(groups, ", "), ")");
}

}  // namespace optshard
