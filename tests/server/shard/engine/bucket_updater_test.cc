// What is asked of a plan where a rule needs whole parameters, and of an executor.
#include "server/shard/engine/bucket_updater.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/update/executor.h"
#include "server/update/group_update.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

absl::Status CreateStatus(PartitionPolicy policy, const std::string& rule,
                          const ExecutorFactory& make_executor = StepContext().make_executor) {
  EngineRig::Options options;
  options.policy = policy;
  EngineRig rig(options);
  const GroupUpdate group = {*RuleRegistry::Find(rule), {}};
  StepContext context;
  context.rank = 1;
  context.shape = rig.shape();
  context.groups =
      std::make_shared<const std::vector<GroupUpdate>>(rig.space().group_count(), group);
  context.store = rig.rank(1).store;
  context.make_executor = make_executor;
  return BucketUpdater::Create(context).status();
}

TEST(BucketUpdater_PlanThatCutsAWholeParameter, IsRefused) {
  const absl::Status status = CreateStatus(PartitionPolicy::kBalanced, "lamb");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the plan gives rank 1"));
  EXPECT_EQ(CreateStatus(PartitionPolicy::kBalanced, "adam"), absl::OkStatus());
  EXPECT_EQ(CreateStatus(PartitionPolicy::kGreedy, "lamb"), absl::OkStatus());
}

TEST(BucketUpdater_ExecutorThatCannotBeMade, GivesItsError) {
  const absl::Status error = absl::UnavailableError("no device");
  EXPECT_EQ(CreateStatus(PartitionPolicy::kGreedy, "adam",
                         [&](const HostResources&) -> absl::StatusOr<std::unique_ptr<Executor>> {
                           return error;
                         }),
            error);
}

}  // namespace
}  // namespace optshard::testing
