// Param groups that are added at a shard server that is away meanwhile: whoever is told so calls
// again with the same group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/forwarding_owner.h"

namespace optshard {
namespace {

using testing::AttachedTo;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::First;
using testing::ForwardingOwner;
using testing::Gradient;
using testing::Parameter;
using testing::RunAttached;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

// As where the server is killed before it can say that all ranks have the values.
class MissesAnAnswer final : public ForwardingOwner {
 public:
  using ForwardingOwner::ForwardingOwner;
  absl::Status GiveAddedValues(absl::Span<const ReplicaTensor> replica,
                               absl::Span<const ReplicaRegion> regions,
                               absl::Duration timeout) override {
    absl::Status given = ForwardingOwner::GiveAddedValues(replica, regions, timeout);
    if (!given.ok() || std::exchange(missed_, true)) return given;
    return errors::OwnerAway({1}, "killed");
  }

 private:
  bool missed_ = false;
};

TEST(AddedGroupsAway, ARankMissesThatAllHaveTheValues_TheSameCallCompletesWhileTheOthersStep) {
  for (const auto& [waits, as_group] :
       std::vector<std::pair<bool, bool>>{{false, true}, {true, true}, {false, false}}) {
    SCOPED_TRACE(waits);
    ExpectAllOk(
        RunAttached(2, [waits = waits, as_group = as_group](ShardedOptimizerOptions options) {
          options.wait_for_trainers = waits;
          ClientSeams seams;
          if (options.rank == 1) {
            seams.link = [](std::unique_ptr<OwnerLink> owner) {
              return std::make_unique<MissesAnAnswer>(std::move(owner));
            };
          }
          const ScopedClientSeams scoped(seams);
          const at::Tensor a = Parameter({1}, 4);
          const at::Tensor b = Parameter({1}, 4 + options.rank);
          for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
          ShardedOptimizer optimizer({a}, Sgd(1), options);
          const auto add = [&] {
            if (!as_group) return optimizer.add_parameters({b});
            optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{b}));
          };
          if (options.rank == 1 && !waits) {
            const absl::Status away = ErrorOf(add);
            EXPECT_TRUE(errors::IsOwnerAway(away)) << away;
          }
          add();
          EXPECT_EQ(optimizer.param_groups().size(), as_group ? 2u : 1u);
          EXPECT_EQ(optimizer.partition_parameters()[0][0].params().size() +
                        optimizer.partition_parameters()[1][0].params().size(),
                    as_group ? 1u : 2u);
          EXPECT_EQ(First(b), 4);
          optimizer.step();
          EXPECT_EQ(First(a), 3);
          EXPECT_EQ(First(b), 3);
          optimizer.Close();
        }));
  }
}

TEST(AddedGroupsAway, TheServerIsKilledWhileRanksAreAwaited_TheSameCallCompletesIt) {
  testing::KeptServer server([](int, auto*) {}, 2);
  std::array<absl::Notification, 2> stepped;
  absl::Notification told;
  std::vector<absl::Status> thrown(2);
  const auto train = [&](Rank rank) {
    ShardedOptimizerOptions options = AttachedTo(server.address(), rank, 2);
    options.wait_for_trainers = false;
    const at::Tensor a = Parameter({1}, 4);
    const at::Tensor b = Parameter({1}, 4);
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    optimizer.step();
    stepped[rank].Notify();
    const OptimizerParamGroup group(std::vector<at::Tensor>{b});
    const auto add = [&] { return ErrorOf([&] { optimizer.add_param_group(group); }); };
    if (rank == 0) {
      const absl::Status away = add();
      EXPECT_TRUE(errors::IsOwnerAway(away)) << away;
      EXPECT_EQ(optimizer.param_groups().size(), 1u);
      told.Notify();
    }
    told.WaitForNotification();
    const auto again = [&](const std::function<absl::Status()>& call) {
      absl::Status called;
      EXPECT_TRUE(testing::Await([&] {
        called = call();
        return !errors::IsOwnerAway(called) && !errors::IsTrainerGone(called);
      }));
      EXPECT_EQ(called, absl::OkStatus());
    };
    again(add);
    EXPECT_EQ(optimizer.param_groups().size(), 2u);
    again([&] { return ErrorOf([&] { optimizer.step(); }); });
    EXPECT_EQ(First(a), 2);
    EXPECT_EQ(First(b), 3);
    optimizer.Close();
  };
  std::vector<std::thread> ranks;
  for (const Rank rank : {0, 1}) {
    ranks.emplace_back([&, rank] { thrown[rank] = ErrorOf([&] { train(rank); }); });
  }
  for (absl::Notification& rank : stepped) rank.WaitForNotification();
  server.Kill();
  told.WaitForNotification();
  server.Return();
  for (std::thread& rank : ranks) rank.join();
  ExpectAllOk(thrown);
}

}  // namespace
}  // namespace optshard
