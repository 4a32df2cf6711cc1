#include "common/membership/membership_rpc.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
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

v1::CallHeader MakeHeader(const MemberId& member, Generation generation,
                          absl::string_view request_id) {
  v1::CallHeader header;
  header.set_job(member.job);
  header.set_optimizer(member.optimizer);
  header.set_generation(generation);
  header.set_rank(member.rank);
  header.set_incarnation(member.incarnation);
  header.set_request_id(std::string(request_id));
  return header;
}

MemberId MemberOf(const v1::CallHeader& header) {
  return MemberId{header.job(), header.optimizer(), header.rank(), header.incarnation()};
}

v1::JoinRequest ToProto(const JoinRequest& request) {
  v1::JoinRequest proto;
  *proto.mutable_header() =
      MakeHeader({request.job, request.optimizer, request.rank, 0}, 0, request.request_id);
  proto.set_protocol_version(request.protocol_version);
  *proto.mutable_spec() = ToProto(request.spec);
  proto.set_node(request.node);
  proto.set_owner_address(request.owner_address);
  proto.set_pid(request.pid);
  if (request.resumes.has_value()) {
    proto.mutable_resumes()->set_generation(request.resumes->generation);
    *proto.mutable_resumes()->mutable_progress() = ToProto(request.resumes->progress);
  }
  return proto;
}

absl::StatusOr<JoinRequest> FromProto(const v1::JoinRequest& proto) {
  absl::StatusOr<OptimizerSpec> spec = FromProto(proto.spec());
  if (!spec.ok()) return spec.status();
  JoinRequest request;
  request.job = proto.header().job();
  request.optimizer = proto.header().optimizer();
  request.rank = proto.header().rank();
  request.request_id = proto.header().request_id();
  request.protocol_version = proto.protocol_version();
  request.spec = *std::move(spec);
  request.node = proto.node();
  request.owner_address = proto.owner_address();
  request.pid = proto.pid();
  if (proto.has_resumes()) {
    const absl::StatusOr<StepProgress> progress = FromProto(proto.resumes().progress());
    if (!progress.ok()) return progress.status();
    if (proto.resumes().generation() > kLargestGeneration) {
      return absl::InvalidArgumentError(
          absl::StrCat("the state that rank ", request.rank, " brings is of generation ",
                       proto.resumes().generation(), ", expected at most ", kLargestGeneration));
    }
    request.resumes = KeptState{proto.resumes().generation(), *progress};
  }
  return request;
}

v1::JoinResponse ToProto(const JoinReply& reply) {
  v1::JoinResponse proto;
  proto.set_incarnation(reply.incarnation);
  proto.set_lease_ms(absl::ToInt64Milliseconds(reply.lease));
  proto.set_heartbeat_period_ms(absl::ToInt64Milliseconds(reply.heartbeat_period));
  proto.set_host_rank(reply.host_rank);
  return proto;
}

JoinReply FromProto(const v1::JoinResponse& proto) {
  JoinReply reply;
  reply.incarnation = proto.incarnation();
  reply.lease = absl::Milliseconds(proto.lease_ms());
  reply.heartbeat_period = absl::Milliseconds(proto.heartbeat_period_ms());
  reply.host_rank = proto.host_rank();
  return reply;
}

v1::WatchEvent ToProto(const MemberEvent& event) {
  v1::WatchEvent proto;
  proto.set_sequence(event.sequence);
  if (event.kind == MemberEvent::Kind::kPlanReady) {
    const PlanReady& ready = *event.ready;
    *proto.mutable_plan_ready()->mutable_plan() = ToProto(ready.plan);
    for (const std::string& address : ready.owner_address) {
      proto.mutable_plan_ready()->add_owner_address(address);
    }
    proto.mutable_plan_ready()->set_finished_step(ready.finished);
    proto.mutable_plan_ready()->set_skipped_calls(ready.skipped);
  } else {
    *proto.mutable_group_failed()->mutable_failure() = ToProto(event.failure);
  }
  return proto;
}

absl::StatusOr<MemberEvent> FromProto(const v1::WatchEvent& proto) {
  MemberEvent event;
  event.sequence = proto.sequence();
  if (proto.has_plan_ready()) {
    absl::StatusOr<Plan> plan = FromProto(proto.plan_ready().plan());
    absl::Status valid = plan.status();
    valid.Update(CheckCount("finished_step", proto.plan_ready().finished_step()));
    valid.Update(CheckCount("skipped_calls", proto.plan_ready().skipped_calls()));
    if (!valid.ok()) return errors::WithContext(valid, "the coordinator's plan");
    event.kind = MemberEvent::Kind::kPlanReady;
    const auto ready = std::make_shared<PlanReady>();
    ready->plan = *std::move(plan);
    ready->owner_address.assign(proto.plan_ready().owner_address().begin(),
                                proto.plan_ready().owner_address().end());
    ready->finished = proto.plan_ready().finished_step();
    ready->skipped = proto.plan_ready().skipped_calls();
    event.ready = ready;
    return event;
  }
  if (proto.has_group_failed()) {
    event.kind = MemberEvent::Kind::kGroupFailed;
    event.failure = FromProto(proto.group_failed().failure());
    if (!event.failure.ok()) return event;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("event ", event.sequence, " of the coordinator is of no kind known here"));
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
