#include "common/membership/growth_rpc.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/membership/common_proto.h"
#include "tests/testing/same_fields.h"

namespace optshard {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using testing::SameFields;

TEST(GrowthRpc, Proposal_ComesBackWholeWithItsSpecOrTheDigestOfIt) {
  GrowthProposal proposal;
  proposal.number = 3;
  proposal.phase = GrowthPhase::kCommit;
  proposal.spec.space = ParameterSpace({GroupSpec{{{"w", {3, 5}}}}});
  proposal.spec.rules = {{"adam"}};
  proposal.prepared = absl::ResourceExhaustedError("no memory");
  proposal.calls = 7;
  proposal.patience = absl::Milliseconds(1500);
  for (const bool has_digest : {false, true}) {
    if (has_digest) proposal.spec_digest = 4711;
    const v1::ProposeGrowthRequest proto = ToProto(proposal);
    // Who calls, and how long it waits, is the call's.
    EXPECT_THAT(SameFields(proto, v1::ProposeGrowthRequest()),
                AllOf(IsSupersetOf({"header", has_digest ? "spec" : "spec_digest", "wait_ms"}),
                      Not(Contains(AnyOf("number", "phase", "prepared", "calls", "patience_ms")))));
    const absl::StatusOr<GrowthProposal> back = FromProto(proto);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), proto));
    EXPECT_EQ(back->phase, GrowthPhase::kCommit);
    EXPECT_EQ(back->prepared, proposal.prepared);
    EXPECT_EQ(back->patience, proposal.patience);
    EXPECT_EQ(back->spec_digest, proposal.spec_digest);
  }
}

TEST(GrowthRpc, ProposalThatNobodyMakes_IsInvalid) {
  v1::ProposeGrowthRequest valid;
  valid.set_number(1);
  valid.set_phase(v1::GROWTH_PHASE_COMPARE);
  EXPECT_EQ(FromProto(valid).status(), absl::OkStatus());
  const auto refusal = [&](void (*spoil)(v1::ProposeGrowthRequest&)) {
    v1::ProposeGrowthRequest proto = valid;
    spoil(proto);
    const absl::Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& proto) { proto.set_patience_ms(-1); }),
              HasSubstr("a patience of -1 ms"));
  EXPECT_THAT(refusal([](auto& proto) { proto.set_number(0); }), HasSubstr("has number 0"));
  EXPECT_THAT(refusal([](auto& proto) { proto.set_phase(v1::GROWTH_PHASE_UNSPECIFIED); }),
              HasSubstr("phase 0"));
  EXPECT_THAT(refusal([](auto& proto) { proto.set_calls(~uint64_t{0}); }), HasSubstr("calls is"));
}

TEST(GrowthRpc, Answer_ComesBackWhole) {
  GrowthAnswer refused;
  refused.verdict = GrowthVerdict::kRefused;
  refused.failure = absl::AbortedError("another spec");
  GrowthAnswer agreed;
  agreed.verdict = GrowthVerdict::kAgreed;
  agreed.generation = 9;
  agreed.others_step = true;
  for (const GrowthAnswer& answer : {refused, agreed}) {
    const absl::StatusOr<GrowthAnswer> back = FromProto(ToProto(answer));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->verdict, answer.verdict);
    EXPECT_EQ(back->failure, answer.failure);
    EXPECT_EQ(back->generation, answer.generation);
    EXPECT_EQ(back->others_step, answer.others_step);
  }
}

TEST(GrowthRpc, AnswerThatNoCoordinatorGives_IsInvalid) {
  GrowthAnswer answer;
  answer.verdict = GrowthVerdict::kAgreed;
  v1::ProposeGrowthResponse proto = ToProto(answer);
  proto.set_verdict(v1::GROWTH_VERDICT_REFUSED);  // without a reason
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto.set_verdict(v1::GROWTH_VERDICT_UNSPECIFIED);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto = ToProto(answer);
  proto.set_generation(kLargestGeneration + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
}

}  // namespace
}  // namespace optshard
