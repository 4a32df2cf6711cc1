#include "common/membership/job_status_rpc.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "tests/testing/same_fields.h"

namespace optshard {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::SameFields;

TEST(JobStatusRpc, Status_ComesBackWhole) {
  JobStatus status;
  status.job = "job";
  GroupStatus group;
  group.optimizer = "generator";
  group.state = GroupState::kFailed;
  group.generation = 3;
  group.world_size = 1;
  group.rules = "muon+adamw";
  group.policy = PartitionPolicy::kGreedyInOrder;
  group.parameter_count = 4;
  group.total_elements = 5;
  group.failure = errors::PeerLost(0, "killed");
  group.torn = true;
  MemberStatus member;
  member.rank = 1;
  member.state = MemberState::kLost;
  member.incarnation = 6;
  member.node = "n";
  member.owner_address = "a:1";
  member.pid = 7;
  member.silent_for = absl::Milliseconds(8);
  member.progress = {9, StepOutcome::kTorn, 4};
  group.members = {member};
  status.groups = {group};
  const v1::JobStatus proto = ToProto(status);
  const absl::StatusOr<JobStatus> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), proto));
  // The token is the page's.
  EXPECT_THAT(SameFields(proto, ToProto(JobStatus())), ElementsAre("next_page_token"));
  EXPECT_THAT(SameFields(proto.groups(0), ToProto(GroupStatus())), IsEmpty());
  EXPECT_THAT(SameFields(proto.groups(0).members(0), ToProto(MemberStatus())), IsEmpty());
  EXPECT_EQ(back->groups[0].failure, group.failure);
  EXPECT_EQ(back->groups[0].members[0].state, MemberState::kLost);
  EXPECT_EQ(back->groups[0].members[0].progress.outcome, StepOutcome::kTorn);
}

}  // namespace
}  // namespace optshard
