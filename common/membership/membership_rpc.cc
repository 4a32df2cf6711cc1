#include "common/membership/membership_rpc.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/membership/common_proto.h"
#include "common/membership/owner_address_rpc.h"
#include "common/node_runs.h"
#include "common/plan.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

// 34 years: as good as none, and far from any overflow.
constexpr int64_t kLongestLeaseMs = int64_t{1} << 40;

absl::StatusOr<std::vector<NodeRun>> NodeRunsFrom(const v1::PlanReady& proto) {
  constexpr int kNumbers = 3;
  if (proto.node_runs_size() % kNumbers != 0) {
    return absl::InvalidArgumentError(absl::StrCat("node_runs has ", proto.node_runs_size(),
                                                   " numbers, expected ", kNumbers, " a run"));
  }
  std::vector<NodeRun> runs;
  runs.reserve(proto.node_runs_size() / kNumbers);
  for (int i = 0; i < proto.node_runs_size(); i += kNumbers) {
    runs.push_back({proto.node_runs(i), proto.node_runs(i + 1), proto.node_runs(i + 2)});
  }
  return runs;
}

v1::PlanReady PlanReadyProto(const PlanReady& ready) {
  v1::PlanReady proto;
  proto.set_finished_step(ready.finished);
  proto.set_skipped_calls(ready.skipped);
  proto.set_generation(ready.plan.generation);
  for (const NodeRun& run : NodeRunsOf(ready.plan.tree)) {
    for (const uint32_t number : {run.first_group, run.ranks_per_group, run.groups}) {
      proto.add_node_runs(number);
    }
  }
  proto.set_plan_digest(ready.plan_digest);
  proto.set_lacks_values(ready.lacks_values);
  proto.set_is_torn(ready.is_torn);
  return proto;
}

absl::StatusOr<PlanReady> PlanReadyOf(const v1::PlanReady& proto, const OptimizerSpec& spec) {
  absl::Status valid = CheckCount("finished_step", proto.finished_step());
  valid.Update(CheckCount("skipped_calls", proto.skipped_calls()));
  valid.Update(CheckGeneration(proto.generation()));
  if (!valid.ok()) return valid;
  const absl::StatusOr<std::vector<NodeRun>> runs = NodeRunsFrom(proto);
  if (!runs.ok()) return runs.status();
  absl::StatusOr<ReductionTree> tree = ReductionTreeOf(*runs, spec.world_size);
  if (!tree.ok()) return tree.status();
  absl::StatusOr<Plan> plan =
      MakePlan(proto.generation(), spec.space, spec.policy, spec.world_size, *std::move(tree));
  if (!plan.ok()) return plan.status();
  PlanReady ready;
  ready.plan = *std::move(plan);
  ready.plan_digest = ready.plan.Digest();
  ready.finished = proto.finished_step();
  ready.skipped = proto.skipped_calls();
  ready.lacks_values = proto.lacks_values();
  ready.is_torn = proto.is_torn();
  if (ready.plan_digest != proto.plan_digest()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the plan of generation %d that follows from the spec here has the digest 0x%016x, the "
        "coordinator's has 0x%016x; run the same version of optshard everywhere",
        proto.generation(), ready.plan_digest, proto.plan_digest()));
  }
  return ready;
}

}  // namespace

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
  if (request.spec_digest.has_value()) {
    proto.set_spec_digest(*request.spec_digest);
    proto.set_world_size(request.spec.world_size);
  } else {
    *proto.mutable_spec() = ToProto(request.spec);
  }
  proto.set_node(request.node);
  proto.set_owner_address(request.owner_address);
  proto.set_pid(request.pid);
  if (request.resumes.has_value()) {
    proto.mutable_resumes()->set_generation(request.resumes->generation);
    *proto.mutable_resumes()->mutable_progress() = ToProto(request.resumes->progress);
    if (request.resumes->prepared_spec_digest.has_value()) {
      proto.mutable_resumes()->set_prepared_spec_digest(*request.resumes->prepared_spec_digest);
    }
    proto.mutable_resumes()->set_lacks_values(request.resumes->lacks_values);
    proto.mutable_resumes()->set_is_torn(request.resumes->is_torn);
  }
  if (request.begins_anew.has_value()) {
    proto.mutable_begins_anew()->set_process(request.begins_anew->process);
    proto.mutable_begins_anew()->set_replaces(request.begins_anew->replaces);
  }
  return proto;
}

absl::StatusOr<JoinRequest> FromProto(const v1::JoinRequest& proto) {
  JoinRequest request;
  if (proto.has_spec()) {
    absl::StatusOr<OptimizerSpec> spec = FromProto(proto.spec());
    if (!spec.ok()) return spec.status();
    request.spec = *std::move(spec);
  } else {
    request.spec_digest = proto.spec_digest();
    request.spec.world_size = proto.world_size();
  }
  request.job = proto.header().job();
  request.optimizer = proto.header().optimizer();
  request.rank = proto.header().rank();
  request.request_id = proto.header().request_id();
  request.protocol_version = proto.protocol_version();
  request.node = proto.node();
  request.owner_address = proto.owner_address();
  request.pid = proto.pid();
  if (proto.has_resumes()) {
    const absl::StatusOr<StepProgress> progress = FromProto(proto.resumes().progress());
    if (!progress.ok()) return progress.status();
    const absl::Status generation = CheckGeneration(proto.resumes().generation());
    if (!generation.ok()) {
      return errors::WithContext(generation,
                                 absl::StrCat("the state that rank ", request.rank, " brings"));
    }
    request.resumes = KeptState{proto.resumes().generation(), *progress};
    if (proto.resumes().has_prepared_spec_digest()) {
      request.resumes->prepared_spec_digest = proto.resumes().prepared_spec_digest();
    }
    request.resumes->lacks_values = proto.resumes().lacks_values();
    request.resumes->is_torn = proto.resumes().is_torn();
  }
  if (proto.has_begins_anew()) {
    request.begins_anew = BeginsAnew{proto.begins_anew().process(), proto.begins_anew().replaces()};
  }
  return request;
}

v1::JoinResponse ToProto(const JoinReply& reply) {
  v1::JoinResponse proto;
  proto.set_answer(static_cast<v1::JoinAnswer>(reply.answer));
  if (reply.answer != JoinAnswer::kAdmitted) return proto;
  proto.set_incarnation(reply.incarnation);
  proto.set_lease_ms(absl::ToInt64Milliseconds(reply.lease));
  proto.set_heartbeat_period_ms(absl::ToInt64Milliseconds(reply.heartbeat_period));
  proto.set_host_rank(reply.host_rank);
  return proto;
}

absl::StatusOr<JoinReply> FromProto(const v1::JoinResponse& proto) {
  if (!v1::JoinAnswer_IsValid(proto.answer()) || proto.answer() == v1::JOIN_ANSWER_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat("the coordinator gives the unknown answer ",
                                                   static_cast<int>(proto.answer()), " to a join"));
  }
  JoinReply reply;
  reply.answer = static_cast<JoinAnswer>(proto.answer());
  if (reply.answer != JoinAnswer::kAdmitted) return reply;
  if (proto.heartbeat_period_ms() < 1 || proto.heartbeat_period_ms() > proto.lease_ms() ||
      proto.lease_ms() > kLongestLeaseMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator asks for a heartbeat each ", proto.heartbeat_period_ms(),
                     " ms and gives a lease of ", proto.lease_ms(), " ms, expected 1 to ",
                     kLongestLeaseMs, " ms and a period within the lease"));
  }
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
    *proto.mutable_plan_ready() = PlanReadyProto(*event.ready);
  } else if (event.kind == MemberEvent::Kind::kProgressWanted) {
    proto.mutable_progress_wanted();
  } else {
    *proto.mutable_group_failed()->mutable_failure() = ToProto(event.failure);
  }
  return proto;
}

absl::StatusOr<MemberEvent> FromProto(const v1::WatchEvent& proto, const OptimizerSpec& spec) {
  MemberEvent event;
  event.sequence = proto.sequence();
  if (proto.has_plan_ready()) {
    absl::StatusOr<PlanReady> ready = PlanReadyOf(proto.plan_ready(), spec);
    if (!ready.ok()) return errors::WithContext(ready.status(), "the coordinator's plan");
    event.kind = MemberEvent::Kind::kPlanReady;
    event.ready = std::make_shared<const PlanReady>(*std::move(ready));
    return event;
  }
  if (proto.has_progress_wanted()) {
    event.kind = MemberEvent::Kind::kProgressWanted;
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

v1::GetPlanResponse ToProto(const OptimizerPlan& plan) {
  v1::GetPlanResponse proto;
  *proto.mutable_spec() = ToProto(plan.spec);
  *proto.mutable_plan() = PlanReadyProto(*plan.ready);
  return proto;
}

absl::StatusOr<OptimizerPlan> FromProto(const v1::GetPlanResponse& proto) {
  absl::StatusOr<OptimizerSpec> spec = FromProto(proto.spec());
  if (!spec.ok()) return errors::WithContext(spec.status(), "the coordinator's spec");
  absl::StatusOr<PlanReady> ready = PlanReadyOf(proto.plan(), *spec);
  if (!ready.ok()) return errors::WithContext(ready.status(), "the coordinator's plan");
  return OptimizerPlan{*std::move(spec), std::make_shared<const PlanReady>(*std::move(ready))};
}

v1::GetOwnersResponse ToProto(const OwnerPage& page) {
  v1::GetOwnersResponse proto;
  proto.set_generation(page.generation);
  proto.set_world_size(page.world_size);
  for (const std::string& address : page.addresses) *proto.add_owners() = PackAddress(address);
  return proto;
}

absl::StatusOr<OwnerPage> FromProto(const v1::GetOwnersResponse& proto) {
  absl::Status valid = CheckGeneration(proto.generation());
  valid.Update(CheckCount("world_size", proto.world_size(), kMaxWorldSize));
  if (proto.world_size() < 1 || proto.owners_size() > kMostOwners) {
    valid.Update(absl::InvalidArgumentError(
        absl::StrCat(proto.owners_size(), " owners of ", proto.world_size(),
                     " ranks in one answer, expected at most ", kMostOwners)));
  }
  if (!valid.ok()) return errors::WithContext(valid, "the coordinator's list of owners");
  OwnerPage page;
  page.generation = proto.generation();
  page.world_size = proto.world_size();
  for (const v1::OwnerAddress& owner : proto.owners()) {
    absl::StatusOr<std::string> address = UnpackAddress(owner);
    if (!address.ok()) {
      return errors::WithContext(address.status(), "the coordinator's list of owners");
    }
    page.addresses.push_back(*std::move(address));
  }
  return page;
}

}  // namespace optshard
