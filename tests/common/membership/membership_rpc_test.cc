#include "common/membership/membership_rpc.h"

#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/membership/common_proto.h"
#include "common/plan.h"
#include "common/request_limits.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/testing/same_fields.h"

namespace optshard {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SameFields;

ParameterSpace Space() {
  ParameterSpec weight{"w", {3, 0, 5}, DType::kBFloat16, "cuda:1"};
  weight.update_cost = 45;
  ParameterSpec scalar{"s", {}, DType::kFloat64, "cpu"};
  ParameterSpec later{"later", {2}};
  return ParameterSpace(
      {GroupSpec{{weight, later}, 0, {{1, 2}}}, GroupSpec{}, GroupSpec{{scalar}, 1}});
}

// Every field set to a value that is not its default.
JoinRequest Request() {
  JoinRequest request;
  request.job = "job";
  request.optimizer = "generator";
  request.rank = 2;
  request.spec.world_size = 3;
  request.request_id = "id";
  request.protocol_version = 9;
  request.spec.space = Space();
  request.spec.rules = {{"sgd"}, {"sgd"}, {"adam"}};
  request.spec.rules[0].hyperparameters.Set("lr", 0.1);
  request.spec.rules[1].hyperparameters.Set("nesterov", true);
  request.spec.rules[2].hyperparameters.Set("betas", Numbers{0.5, 0.75});
  request.spec.rules[2].hyperparameters.Set("mode", std::string("slow"));
  request.spec.share_parameters = true;
  request.spec.state.master_weights = true;
  request.spec.state.master_weight_bits = 24;
  request.spec.state.publish_dtype = DType::kFloat16;
  request.spec.state.format = StateFormat::kBFloat16;
  request.spec.gradient_mode = GradientMode::kAveraged;
  request.spec.policy = PartitionPolicy::kBalanced;
  request.spec.buckets = {1024, 64};
  request.node = "node";
  request.owner_address = "host:1";
  request.pid = 42;
  request.resumes = KeptState{6, {8, StepOutcome::kApplied, 2}, 4711, true, true};
  request.begins_anew = BeginsAnew{17, true};
  return request;
}

TEST(MembershipRpc, JoinRequest_ComesBackWhole) {
  const v1::JoinRequest proto = ToProto(Request());
  const absl::StatusOr<JoinRequest> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FirstDifference(Space(), "sent", back->spec.space, "received"), absl::nullopt);
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), proto));
  // A join has neither generation nor incarnation yet, and this one has its spec.
  EXPECT_THAT(SameFields(proto, ToProto(JoinRequest())),
              ElementsAre("header.generation", "header.incarnation", "spec_digest", "world_size"));
  EXPECT_EQ(FirstDifference(Request().spec, "sent", back->spec, "received"), absl::nullopt);
  EXPECT_EQ(back->spec.rules[2].hyperparameters.List("betas"), (Numbers{0.5, 0.75}));
  EXPECT_EQ(back->spec.rules[2].hyperparameters.Choice("mode"), "slow");
  EXPECT_EQ(back->spec.policy, PartitionPolicy::kBalanced);
  EXPECT_EQ(back->spec.buckets.pack_below_bytes, 64);
  EXPECT_EQ(back->spec.state.master_weight_bits, 24);
  EXPECT_EQ(back->spec.state.format, StateFormat::kBFloat16);
}

TEST(MembershipRpc, JoinRequestWithoutItsSpec_HasTheDigestAndTheWorldSize) {
  const v1::JoinRequest proto = ToProto(WithoutSpec(Request()));
  EXPECT_FALSE(proto.has_spec());
  const absl::StatusOr<JoinRequest> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->spec_digest, Request().spec.Digest());
  EXPECT_EQ(back->spec.world_size, 3);
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), proto));
}

TEST(MembershipRpc, CallHeader_ComesBackWhole) {
  const v1::CallHeader proto = MakeHeader({"job", "generator", 2, 7}, 5, "id");
  EXPECT_THAT(SameFields(proto, v1::CallHeader()), IsEmpty());
  const MemberId back = MemberOf(proto);
  EXPECT_TRUE(
      MessageDifferencer::Equals(MakeHeader(back, proto.generation(), proto.request_id()), proto));
}

TEST(MembershipRpc, JoinReply_ComesBackWhole) {
  JoinReply reply;
  reply.incarnation = 3;
  reply.lease = absl::Seconds(5);
  reply.heartbeat_period = absl::Seconds(1);
  reply.host_rank = 2;
  const v1::JoinResponse proto = ToProto(reply);
  JoinReply plain;
  EXPECT_THAT(SameFields(proto, ToProto(plain)), ElementsAre("answer"));
  ASSERT_TRUE(FromProto(proto).ok()) << FromProto(proto).status();
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*FromProto(proto)), proto));
  for (const JoinAnswer answer : {JoinAnswer::kSendSpec, JoinAnswer::kAskAgain}) {
    plain.answer = answer;
    EXPECT_EQ(FromProto(ToProto(plain))->answer, answer);
  }
}

TEST(MembershipRpc, JoinReplyOfNoUse_IsInvalid) {
  v1::JoinResponse valid;
  valid.set_answer(v1::JOIN_ANSWER_ADMITTED);
  valid.set_lease_ms(5000);
  valid.set_heartbeat_period_ms(1000);
  EXPECT_TRUE(FromProto(valid).ok());
  const auto refused = [](const v1::JoinResponse& proto) {
    return absl::IsInvalidArgument(FromProto(proto).status());
  };
  v1::JoinResponse proto = valid;
  proto.set_answer(v1::JOIN_ANSWER_UNSPECIFIED);
  EXPECT_TRUE(refused(proto));
  for (const int64_t period : {int64_t{-1}, int64_t{0}, int64_t{5001}}) {
    proto = valid;
    proto.set_heartbeat_period_ms(period);
    EXPECT_TRUE(refused(proto)) << period;
  }
  proto = valid;
  proto.set_lease_ms(std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(refused(proto));
}

TEST(MembershipRpc, UnknownEnums_AreInvalid) {
  v1::JoinRequest proto = ToProto(Request());
  proto.mutable_spec()->set_policy(v1::PARTITION_POLICY_UNSPECIFIED);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto.mutable_spec()->set_policy(static_cast<v1::PartitionPolicy>(99));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto = ToProto(Request());
  proto.mutable_spec()->mutable_space()->mutable_groups(0)->mutable_parameters(0)->set_dtype(
      static_cast<v1::DType>(77));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(v1::StepProgress()).status()));
}

TEST(MembershipRpc, MoreNumbersThanAHyperparameterHas_AreInvalid) {
  v1::JoinRequest proto = ToProto(Request());
  v1::Hyperparameter* betas = proto.mutable_spec()->mutable_rules(2)->mutable_hyperparameters(0);
  ASSERT_EQ(betas->name(), "betas");
  while (betas->numbers().values_size() < static_cast<int>(kMaxNumbers)) {
    betas->mutable_numbers()->add_values(0.5);
  }
  EXPECT_TRUE(FromProto(proto).ok());
  betas->mutable_numbers()->add_values(0.5);
  const absl::Status status = FromProto(proto).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("\"betas\""), absl::string_view::npos) << status;
}

TEST(MembershipRpc, NumbersThatNoJobReaches_AreInvalid) {
  v1::StepProgress progress = ToProto(StepProgress{kLargestStep, StepOutcome::kIdle});
  EXPECT_TRUE(FromProto(progress).ok());
  progress.set_finished_step(kLargestStep + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(progress).status()));
  progress.set_finished_step(0);
  progress.set_skipped_calls(kLargestStep + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(progress).status()));
  const OptimizerSpec spec = Request().spec;
  const auto refusal = [&spec](const v1::WatchEvent& event) {
    return std::string(FromProto(event, spec).status().message());
  };
  v1::WatchEvent event;
  event.mutable_plan_ready()->set_finished_step(kLargestStep + 1);
  EXPECT_THAT(refusal(event), HasSubstr("finished_step is"));
  event.mutable_plan_ready()->set_finished_step(0);
  event.mutable_plan_ready()->set_finished_step(0);
  EXPECT_THAT(refusal(event), HasSubstr("the reduction tree is of 0 ranks"));
  event.mutable_plan_ready()->set_skipped_calls(kLargestStep + 1);
  EXPECT_THAT(refusal(event), HasSubstr("skipped_calls is"));
  JoinRequest join;
  join.resumes = KeptState{kLargestGeneration, {}};
  EXPECT_TRUE(FromProto(ToProto(join)).ok());
  join.resumes->generation = ~Generation{0};
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(ToProto(join)).status()));
}

// Of the generation, after that step.
MemberEvent PlanEvent(const OptimizerSpec& spec, absl::Span<const std::string> nodes) {
  PlanReady ready;
  ready.plan = MakePlan(5, spec.space, spec.policy, nodes).value();
  ready.plan_digest = ready.plan.Digest();
  ready.finished = 11;
  ready.skipped = 70000;
  ready.lacks_values = true;
  ready.is_torn = true;
  MemberEvent event;
  event.sequence = 4;
  event.kind = MemberEvent::Kind::kPlanReady;
  event.ready = std::make_shared<const PlanReady>(std::move(ready));
  return event;
}

TEST(MembershipRpc, PlanEvent_MemberMakesThePlanOfItsSpec) {
  const OptimizerSpec spec = Request().spec;
  const MemberEvent event = PlanEvent(spec, {"b", "a", "b"});
  const v1::WatchEvent proto = ToProto(event);
  MemberEvent empty;
  empty.ready = std::make_shared<PlanReady>();
  EXPECT_THAT(SameFields(proto, ToProto(empty)), IsEmpty());
  const absl::StatusOr<MemberEvent> back = FromProto(proto, spec);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), proto));
  EXPECT_EQ(back->sequence, 4u);
  EXPECT_EQ(back->ready->plan.generation, 5u);
  EXPECT_EQ(back->ready->plan.world_size, 3);
  EXPECT_EQ(back->ready->plan.policy, PartitionPolicy::kBalanced);
  EXPECT_EQ(back->ready->plan.partition.slices, event.ready->plan.partition.slices);
  EXPECT_EQ(back->ready->plan.tree, event.ready->plan.tree);
}

TEST(MembershipRpc, PlanEvent_DoesNotGrowWithRanksThatAreNumberedByNode) {
  OptimizerSpec spec = Request().spec;
  const auto bytes = [&spec](int world_size) {
    spec.world_size = world_size;
    std::vector<std::string> nodes;
    for (int rank = 0; rank < world_size; ++rank) nodes.push_back(absl::StrCat("node-", rank / 8));
    return ToProto(PlanEvent(spec, nodes)).ByteSizeLong();
  };
  EXPECT_LE(bytes(8192), bytes(16) + 4);
}

TEST(MembershipRpc, PlanThatTheMemberDoesNotMake_ShowsBothDigests) {
  const OptimizerSpec spec = Request().spec;
  OptimizerSpec other = spec;
  other.policy = PartitionPolicy::kReplicated;
  const absl::Status status = FromProto(ToProto(PlanEvent(other, {"a", "a", "a"})), spec).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("generation 5"), HasSubstr("run the same version")));
}

TEST(MembershipRpc, PlanThatDoesNotFitTheSpec_IsInvalid) {
  const OptimizerSpec spec = Request().spec;
  v1::WatchEvent proto = ToProto(PlanEvent(spec, {"a", "a", "a"}));
  EXPECT_TRUE(FromProto(proto, spec).ok());
  v1::PlanReady& ready = *proto.mutable_plan_ready();
  ready.set_generation(~Generation{0});
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto, spec).status()));
  ready.set_generation(5);
  ready.set_node_runs(1, 4);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto, spec).status()));
  ready.set_node_runs(1, 3);
  ready.add_node_runs(0);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto, spec).status()));
}

TEST(MembershipRpc, Owners_ComeBackWhole) {
  OwnerPage page;
  page.generation = 3;
  page.world_size = 9;
  page.addresses = {"127.0.0.1:4700",
                    "[2001:db8::17]:65535",
                    "trainer-3.jobs.local:80",
                    "",
                    "127.0.0.1:047000",
                    "1.2.3.4",
                    "[::1]",
                    ":5"};
  const v1::GetOwnersResponse proto = ToProto(page);
  EXPECT_THAT(SameFields(proto, ToProto(OwnerPage())), IsEmpty());
  const absl::StatusOr<OwnerPage> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->generation, page.generation);
  EXPECT_EQ(back->world_size, page.world_size);
  EXPECT_EQ(back->addresses, page.addresses);
  for (int i : {0, 1}) EXPECT_LE(proto.owners(i).ByteSizeLong() + 2, 32u);
}

TEST(MembershipRpc, OwnersThatNoJobHas_AreInvalid) {
  OwnerPage page;
  page.world_size = 2;
  page.addresses = {"[::1]:80"};
  const v1::GetOwnersResponse valid = ToProto(page);
  EXPECT_TRUE(FromProto(valid).ok());
  v1::GetOwnersResponse proto = valid;
  proto.mutable_owners(0)->set_port(65536);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto = valid;
  proto.mutable_owners(0)->set_ipv6("short");
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto = valid;
  proto.mutable_owners(0)->set_text(std::string(300, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  proto = valid;
  for (const int32_t world_size : {-1, 0, kMaxWorldSize + 1}) {
    proto.set_world_size(world_size);
    EXPECT_TRUE(absl::IsInvalidArgument(FromProto(proto).status()));
  }
}

TEST(MembershipRpc, FailureEvent_KeepsItsKind) {
  MemberEvent event;
  event.sequence = 2;
  event.kind = MemberEvent::Kind::kProgressWanted;
  event.sequence = 4;
  const absl::StatusOr<MemberEvent> wanted = FromProto(ToProto(event), OptimizerSpec());
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(wanted->kind, MemberEvent::Kind::kProgressWanted);
  EXPECT_EQ(wanted->sequence, 4u);
  event.kind = MemberEvent::Kind::kGroupFailed;
  event.failure = errors::PeerLost(1, "killed");
  const v1::WatchEvent proto = ToProto(event);
  EXPECT_THAT(SameFields(proto, v1::WatchEvent()), IsEmpty());
  const absl::StatusOr<MemberEvent> back = FromProto(proto, OptimizerSpec());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), proto));
  EXPECT_EQ(back->kind, MemberEvent::Kind::kGroupFailed);
  EXPECT_EQ(back->failure, event.failure);
}

TEST(MembershipRpc, EventOfNoKnownKind_IsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(v1::WatchEvent(), OptimizerSpec()).status()));
}

}  // namespace
}  // namespace optshard
