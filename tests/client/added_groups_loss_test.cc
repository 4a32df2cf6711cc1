// Param groups that are added where a rank misses an answer, or does not go on as the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/fake_plane.h"
#include "tests/testing/forwarding_coordinator.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::FakeHub;
using testing::First;
using testing::ForwardingCoordinator;
using testing::ForwardingSession;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::RunRanksOfOneHost;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

// Loses contact once, before it has the answer to its first proposal.
class LossySession final : public ForwardingSession {
 public:
  using ForwardingSession::ForwardingSession;
  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    absl::StatusOr<GrowthAnswer> answer = ForwardingSession::ProposeGrowth(proposal, deadline);
    if (proposal.number == 1) return absl::UnavailableError("no answer comes");
    return answer;
  }
};

// Rank 1 has agreed to what rank 0 adds, does not hear of it, and steps.
TEST(AddedGroupsLoss, ARankStepsWhileTheOthersCommit_BothAreToldAndGoOn) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    ClientSeams seams = *ScopedClientSeams::Current();
    ForwardingCoordinator lossy(seams.coordinator, [](std::unique_ptr<MemberSession> session) {
      return std::make_unique<LossySession>(std::move(session));
    });
    if (options.rank == 1) seams.coordinator = &lossy;
    const ScopedClientSeams scoped(seams);
    const at::Tensor a = Parameter({1}, 4);
    const at::Tensor b = Parameter({1}, 4);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
    const OptimizerParamGroup group(std::vector<at::Tensor>{b});
    absl::Status status = ErrorOf([&] { optimizer.add_param_group(group); });
    if (options.rank == 1) {
      EXPECT_EQ(status, absl::UnavailableError("no answer comes"));
      status = ErrorOf([&] { optimizer.step(); });
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 adds a param group"), HasSubstr("rank 1 is in step()")));
    EXPECT_EQ(optimizer.param_groups().size(), 1u);
    optimizer.step();
    EXPECT_EQ(First(a), 3);
    EXPECT_EQ(First(b), 4);
  }));
}

// Does not reach the coordinator at first.
class UnreachedSession final : public ForwardingSession {
 public:
  using ForwardingSession::ForwardingSession;
  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    if (proposal.number == 1) return absl::UnavailableError("nobody answers");
    return ForwardingSession::ProposeGrowth(proposal, deadline);
  }
};

TEST(AddedGroupsLoss, NoCoordinatorAnswersARank_ItsSecondCallWithTheSameGroupCompletesTheOthers) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    ClientSeams seams = *ScopedClientSeams::Current();
    ForwardingCoordinator unreached(seams.coordinator, [](std::unique_ptr<MemberSession> session) {
      return std::make_unique<UnreachedSession>(std::move(session));
    });
    if (options.rank == 1) seams.coordinator = &unreached;
    const ScopedClientSeams scoped(seams);
    const at::Tensor a = Parameter({1}, 4);
    ShardedOptimizer optimizer({Parameter({1}, 4)}, Sgd(1), options);
    const OptimizerParamGroup group(std::vector<at::Tensor>{a});
    if (options.rank == 1) {
      EXPECT_EQ(ErrorOf([&] { optimizer.add_param_group(group); }),
                absl::UnavailableError("nobody answers"));
      EXPECT_EQ(optimizer.param_groups().size(), 1u);
    }
    optimizer.add_param_group(group);
    EXPECT_EQ(optimizer.param_groups().size(), 2u);
    a.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 3);
  }));
}

// Answers of another generation than the next one.
class OddSession final : public ForwardingSession {
 public:
  using ForwardingSession::ForwardingSession;
  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    absl::StatusOr<GrowthAnswer> answer = ForwardingSession::ProposeGrowth(proposal, deadline);
    if (answer.ok()) answer->generation += 1;
    return answer;
  }
};

TEST(AddedGroupsLoss, TheAnswerIsOfAnotherGeneration_NothingIsBuilt) {
  ExpectAllOk(RunRanks(1, [](const ShardedOptimizerOptions& options) {
    ClientSeams seams = *ScopedClientSeams::Current();
    ForwardingCoordinator odd(seams.coordinator, [](std::unique_ptr<MemberSession> session) {
      return std::make_unique<OddSession>(std::move(session));
    });
    seams.coordinator = &odd;
    const ScopedClientSeams scoped(seams);
    ShardedOptimizer optimizer({Parameter({1}, 4)}, Sgd(1), options);
    const absl::Status status = ErrorOf([&] {
      optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{Parameter({1}, 4)}));
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("generation 3, expected 2"));
    optimizer.step();
  }));
}

TEST(AddedGroupsLoss, TheSynchronizationFails_TheGroupStandsThereOnce) {
  FakeHub::Options hub_options;
  hub_options.world_size = 2;
  FakeHub hub(hub_options);
  hub.Kill(1);
  for (const absl::Status& thrown : RunRanks(2, [&hub](const ShardedOptimizerOptions& options) {
         ClientSeams seams = *ScopedClientSeams::Current();
         seams.plane =
             [&hub, plane = seams.plane](
                 const PlaneRequest& request,
                 const ReplicaOfRank& replica) -> absl::StatusOr<std::unique_ptr<DataPlane>> {
           if (request.generation == 2) return hub.MakePlane(request.rank);
           return plane(request, replica);
         };
         const ScopedClientSeams scoped(seams);
         ShardedOptimizer optimizer({Parameter({1}, 4)}, Sgd(1), options);
         torch::optim::Optimizer& base = optimizer;
         for (int i = 0; i < 2; ++i) {
           base.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{Parameter({1}, 4)}));
         }
         EXPECT_FALSE(ErrorOf([&] { optimizer.step(); }).ok());
         EXPECT_EQ(optimizer.param_groups().size(), 3u);
       })) {
    EXPECT_EQ(thrown, absl::OkStatus());
  }
}

TEST(AddedGroupsLoss, ThroughTheBaseClassAndThenNot_AllAreTaken) {
  ExpectAllOk(RunRanks(1, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer({Parameter({1}, 4)}, Sgd(1), options);
    static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(
        OptimizerParamGroup(std::vector<at::Tensor>{Parameter({1}, 4)}));
    const at::Tensor last = Parameter({1}, 4);
    optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{last}));
    EXPECT_EQ(optimizer.param_groups().size(), 3u);
    last.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(last), 3);
  }));
}

TEST(AddedGroupsLoss, ParametersGivenTwiceAndNamesThatAreTaken_LeaveTheAddedOnesNamesOfTheirOwn) {
  ExpectAllOk(RunRanks(1, [](ShardedOptimizerOptions options) {
    options.parameter_names = {"parameter_1"};
    ShardedOptimizer optimizer({Parameter({1}, 4)}, Sgd(1), options);
    const at::Tensor twice = Parameter({1}, 4);
    optimizer.add_param_group(OptimizerParamGroup({twice, twice, Parameter({1}, 4)}));
    optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{Parameter({1}, 4)}));
    EXPECT_EQ(optimizer.param_groups().size(), 3u);
  }));
}

TEST(AddedGroupsLoss, RanksGiveOtherOptions_AllAreToldWhichAndGoOn) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                const auto add = [&optimizer](const RuleOptions& rule) {
                  optimizer.add_param_group(OptimizerParamGroup(
                      {Parameter({1}, 4)}, std::make_unique<RuleOptions>(rule)));
                };
                const RuleOptions adam("adam");
                const absl::Status status = ErrorOf([&] {
                  add(options.rank == 0 ? RuleOptions("adam").Set("amsgrad", true) : adam);
                });
                EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
                EXPECT_THAT(std::string(status.message()),
                            AllOf(HasSubstr("option \"amsgrad\" of param group 1"),
                                  HasSubstr("rank 0 has true"), HasSubstr("rank 1 has false")));
                // The default, given or not.
                add(options.rank == 0 ? RuleOptions("adam").Set("lr", 0.001) : adam);
                EXPECT_EQ(optimizer.param_groups().size(), 2u);
                a.mutable_grad() = Gradient({1}, 1);
                optimizer.step();
                EXPECT_EQ(First(a), 3);
              }).thrown);
}

}  // namespace
}  // namespace optshard
