#include "tests/testing/same_fields.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/coordinator.pb.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SameFields_FieldsWithThePlainValue_AreListed, ByPath) {
  v1::JoinResponse plain;
  plain.set_host_rank(-1);
  v1::JoinResponse sent;
  sent.set_lease_ms(5);
  sent.set_heartbeat_period_ms(1);
  sent.set_host_rank(-1);
  EXPECT_THAT(SameFields(sent, plain), ElementsAre("incarnation", "host_rank", "answer"));
}

TEST(SameFields_OfNestedMessages_AreListed, ByPath) {
  v1::LeaveRequest sent;
  EXPECT_THAT(SameFields(sent, v1::LeaveRequest()), ElementsAre("header", "progress"));
  sent.mutable_header()->set_job("job");
  sent.mutable_progress()->set_finished_step(1);
  EXPECT_THAT(
      SameFields(sent, v1::LeaveRequest()),
      ElementsAre("header.optimizer", "header.generation", "header.rank", "header.incarnation",
                  "header.request_id", "progress.outcome", "progress.skipped_calls"));
}

TEST(SameFields_ElementsOfARepeatedField_CountTogether, OneThatDiffersIsEnough) {
  v1::ParameterGroup sent;
  sent.set_admission(1);
  sent.add_additions()->set_first(1);
  sent.mutable_additions(0)->set_admission(1);
  EXPECT_THAT(SameFields(sent, v1::ParameterGroup()), ElementsAre("parameters"));
  sent.add_parameters()->set_name("w");
  sent.mutable_parameters(0)->set_device("cpu");
  sent.mutable_parameters(0)->set_update_cost(1);
  sent.mutable_parameters(0)->set_main_gradient(true);
  sent.add_parameters()->add_shape(3);
  EXPECT_THAT(SameFields(sent, v1::ParameterGroup()), ElementsAre("parameters.dtype"));
}

TEST(SameFields_OfAOneof_OnlyTheChosenFieldCounts, NotTheOthers) {
  v1::WatchEvent sent;
  sent.set_sequence(1);
  sent.mutable_group_failed()->mutable_failure()->set_code(2);
  sent.mutable_group_failed()->mutable_failure()->set_message("m");
  sent.mutable_group_failed()->mutable_failure()->set_payload("p");
  EXPECT_THAT(SameFields(sent, v1::WatchEvent()), IsEmpty());
}

}  // namespace
}  // namespace optshard::testing
