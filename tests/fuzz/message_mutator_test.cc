#include "tests/fuzz/message_mutator.h"

#include <limits>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "proto/optshard/v1/coordinator.pb.h"
#include "proto/optshard/v1/shard_owner.pb.h"

namespace optshard::testing {
namespace {

v1::JoinRequest Join() {
  v1::JoinRequest join;
  join.mutable_header()->set_job("digits");
  v1::ParameterSpec& parameter =
      *join.mutable_spec()->mutable_space()->add_groups()->add_parameters();
  parameter.set_name("fc.weight");
  parameter.add_shape(10);
  return join;
}

TEST(MessageMutator_SameSeed, GivesTheSameMessages) {
  MessageMutator first(7);
  MessageMutator second(7);
  v1::JoinRequest a = Join();
  v1::JoinRequest b = Join();
  for (int i = 0; i < 500; ++i) {
    first.Mutate(&a);
    second.Mutate(&b);
    ASSERT_EQ(a.DebugString(), b.DebugString());
  }
}

TEST(MessageMutator_ManyMutations, ReachEveryFieldAndStayParsable) {
  MessageMutator mutator(1);
  mutator.Learn(Join());
  std::set<std::string> changed;
  bool shape = false;
  for (int i = 0; i < 3000; ++i) {
    v1::JoinRequest join = Join();
    mutator.Mutate(&join);
    for (int f = 0; f < join.GetDescriptor()->field_count(); ++f) {
      const google::protobuf::FieldDescriptor* field = join.GetDescriptor()->field(f);
      v1::JoinRequest only = Join();
      only.GetReflection()->SwapFields(&only, &join, {field});
      if (only.SerializeAsString() != Join().SerializeAsString()) changed.insert(field->name());
      only.GetReflection()->SwapFields(&only, &join, {field});
    }
    shape |= join.spec().space().groups_size() > 0 &&
             join.spec().space().groups(0).parameters_size() > 0 &&
             join.spec().space().groups(0).parameters(0).shape_size() != 1;
    v1::JoinRequest parsed;
    ASSERT_TRUE(parsed.ParseFromString(join.SerializeAsString()));
  }
  EXPECT_EQ(changed.size(), static_cast<size_t>(v1::JoinRequest::descriptor()->field_count()))
      << ::testing::PrintToString(changed);
  EXPECT_TRUE(shape);
}

TEST(MessageMutator_Numbers, ComeToTheEndsOfTheirTypes) {
  MessageMutator mutator(1);
  std::set<int64_t> offsets;
  for (int i = 0; i < 20000; ++i) {
    v1::ReadSlotRequest read;
    mutator.Mutate(&read);
    offsets.insert(read.offset_elements());
  }
  EXPECT_EQ(offsets.count(std::numeric_limits<int64_t>::max()), 1u);
  EXPECT_EQ(offsets.count(std::numeric_limits<int64_t>::min()), 1u);
  EXPECT_EQ(offsets.count(-1), 1u);
}

}  // namespace
}  // namespace optshard::testing
