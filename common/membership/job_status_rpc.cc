#include "common/membership/job_status_rpc.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/membership/common_proto.h"

namespace optshard {
namespace {

// The enums' values are ours (membership.h says that they are stable).
absl::StatusOr<MemberState> MemberStateOf(v1::MemberState proto) {
  if (!v1::MemberState_IsValid(proto) || proto == v1::MEMBER_STATE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown member state ", static_cast<int>(proto)));
  }
  return static_cast<MemberState>(proto);
}

absl::StatusOr<GroupState> GroupStateOf(v1::GroupState proto) {
  if (!v1::GroupState_IsValid(proto) || proto == v1::GROUP_STATE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown group state ", static_cast<int>(proto)));
  }
  return static_cast<GroupState>(proto);
}

}  // namespace

v1::MemberStatus ToProto(const MemberStatus& member) {
  v1::MemberStatus proto;
  proto.set_summary(Summary(member));
  proto.set_rank(member.rank);
  proto.set_state(static_cast<v1::MemberState>(member.state));
  proto.set_incarnation(member.incarnation);
  proto.set_node(member.node);
  proto.set_owner_address(member.owner_address);
  proto.set_pid(member.pid);
  proto.set_silent_ms(absl::ToInt64Milliseconds(member.silent_for));
  *proto.mutable_progress() = ToProto(member.progress);
  return proto;
}

absl::StatusOr<MemberStatus> FromProto(const v1::MemberStatus& proto) {
  const absl::StatusOr<MemberState> state = MemberStateOf(proto.state());
  if (!state.ok()) return state.status();
  const absl::StatusOr<StepProgress> progress = FromProto(proto.progress());
  if (!progress.ok()) return progress.status();
  MemberStatus member;
  member.rank = proto.rank();
  member.state = *state;
  member.incarnation = proto.incarnation();
  member.node = proto.node();
  member.owner_address = proto.owner_address();
  member.pid = proto.pid();
  member.silent_for = absl::Milliseconds(proto.silent_ms());
  member.progress = *progress;
  return member;
}

v1::GroupStatus ToProto(const GroupStatus& group) {
  v1::GroupStatus proto;
  proto.set_summary(Summary(group));
  proto.set_optimizer(group.optimizer);
  proto.set_state(static_cast<v1::GroupState>(group.state));
  proto.set_generation(group.generation);
  proto.set_world_size(group.world_size);
  proto.set_rules(group.rules);
  proto.set_policy(ToProto(group.policy));
  proto.set_parameter_count(group.parameter_count);
  proto.set_total_elements(group.total_elements);
  if (!group.failure.ok()) *proto.mutable_failure() = ToProto(group.failure);
  proto.set_torn(group.torn);
  for (const MemberStatus& member : group.members) *proto.add_members() = ToProto(member);
  return proto;
}

absl::StatusOr<GroupStatus> FromProto(const v1::GroupStatus& proto) {
  const absl::StatusOr<GroupState> state = GroupStateOf(proto.state());
  if (!state.ok()) return state.status();
  const absl::StatusOr<PartitionPolicy> policy = FromProto(proto.policy());
  if (!policy.ok()) return policy.status();
  GroupStatus group;
  group.optimizer = proto.optimizer();
  group.state = *state;
  group.generation = proto.generation();
  group.world_size = proto.world_size();
  group.rules = proto.rules();
  group.policy = *policy;
  group.parameter_count = proto.parameter_count();
  group.total_elements = proto.total_elements();
  if (proto.has_failure()) group.failure = FromProto(proto.failure());
  group.torn = proto.torn();
  for (const v1::MemberStatus& member_proto : proto.members()) {
    absl::StatusOr<MemberStatus> member = FromProto(member_proto);
    if (!member.ok()) return member.status();
    group.members.push_back(*std::move(member));
  }
  return group;
}

v1::JobStatus ToProto(const JobStatus& status) {
  v1::JobStatus proto;
  proto.set_summary(Summary(status));
  proto.set_job(status.job);
  for (const GroupStatus& group : status.groups) *proto.add_groups() = ToProto(group);
  return proto;
}

absl::StatusOr<JobStatus> FromProto(const v1::JobStatus& proto) {
  JobStatus status;
  status.job = proto.job();
  for (const v1::GroupStatus& group_proto : proto.groups()) {
    absl::StatusOr<GroupStatus> group = FromProto(group_proto);
    if (!group.ok()) return group.status();
    status.groups.push_back(*std::move(group));
  }
  return status;
}

}  // namespace optshard
