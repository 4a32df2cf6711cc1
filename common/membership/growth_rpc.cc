#include "common/membership/growth_rpc.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/membership/common_proto.h"
#include "common/optimizer_spec.h"

namespace optshard {

v1::ProposeGrowthRequest ToProto(const GrowthProposal& proposal) {
  v1::ProposeGrowthRequest proto;
  proto.set_number(proposal.number);
  proto.set_phase(static_cast<v1::GrowthPhase>(proposal.phase));
  if (proposal.spec_digest.has_value()) {
    proto.set_spec_digest(*proposal.spec_digest);
  } else {
    *proto.mutable_spec() = ToProto(proposal.spec);
  }
  if (!proposal.prepared.ok()) *proto.mutable_prepared() = ToProto(proposal.prepared);
  proto.set_calls(proposal.calls);
  proto.set_patience_ms(absl::ToInt64Milliseconds(proposal.patience));
  return proto;
}

absl::StatusOr<GrowthProposal> FromProto(const v1::ProposeGrowthRequest& proto) {
  GrowthProposal proposal;
  if (!v1::GrowthPhase_IsValid(proto.phase()) || proto.phase() == v1::GROWTH_PHASE_UNSPECIFIED ||
      proto.number() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a proposal of param groups has number ", proto.number(), " and phase ",
                     static_cast<int>(proto.phase()), ", expected a number from 1 on and 1 or 2"));
  }
  absl::Status valid = CheckCount("calls", proto.calls() / 2);  // steps, and skipped calls
  if (proto.patience_ms() < 0) {
    valid.Update(
        absl::InvalidArgumentError(absl::StrCat("a proposal of param groups has a patience of ",
                                                proto.patience_ms(), " ms, expected at least 0")));
  }
  if (!valid.ok()) return valid;
  if (proto.has_spec()) {
    absl::StatusOr<OptimizerSpec> spec = FromProto(proto.spec());
    if (!spec.ok()) return spec.status();
    proposal.spec = *std::move(spec);
  } else {
    proposal.spec_digest = proto.spec_digest();
  }
  proposal.number = proto.number();
  proposal.phase = static_cast<GrowthPhase>(proto.phase());
  if (proto.has_prepared()) proposal.prepared = FromProto(proto.prepared());
  proposal.calls = proto.calls();
  proposal.patience = absl::Milliseconds(proto.patience_ms());
  return proposal;
}

v1::ProposeGrowthResponse ToProto(const GrowthAnswer& answer) {
  v1::ProposeGrowthResponse proto;
  proto.set_verdict(static_cast<v1::GrowthVerdict>(answer.verdict));
  proto.set_generation(answer.generation);
  if (!answer.failure.ok()) *proto.mutable_failure() = ToProto(answer.failure);
  proto.set_others_step(answer.others_step);
  return proto;
}

absl::StatusOr<GrowthAnswer> FromProto(const v1::ProposeGrowthResponse& proto) {
  GrowthAnswer answer;
  if (proto.has_failure()) answer.failure = FromProto(proto.failure());
  const bool refused = proto.verdict() == v1::GROWTH_VERDICT_REFUSED;
  if (!v1::GrowthVerdict_IsValid(proto.verdict()) ||
      proto.verdict() == v1::GROWTH_VERDICT_UNSPECIFIED || refused == answer.failure.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator answers a proposal of param groups with ",
                     static_cast<int>(proto.verdict()), " and ", answer.failure.ToString(),
                     ", expected 1 to 4, and an error with 2 alone; run the same version of "
                     "optshard everywhere"));
  }
  absl::Status valid = CheckGeneration(proto.generation());
  if (!valid.ok()) return errors::WithContext(valid, "the answer to a proposal of param groups");
  answer.verdict = static_cast<GrowthVerdict>(proto.verdict());
  answer.generation = proto.generation();
  answer.others_step = proto.others_step();
  return answer;
}

}  // namespace optshard
