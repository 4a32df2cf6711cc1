#include "server/node/memory_need.h"

#include <map>
#include <vector>

#include "common/bucket.h"
#include "common/plan.h"
#include "gtest/gtest.h"
#include "server/node/rank_record.h"
#include "server/shard/state/shard_store.h"
#include "server/update/hyperparameter_bytes.h"
#include "server/update/update_rule.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard {
namespace {

AttachRequest Request(Rank rank, int world_size, PartitionPolicy policy) {
  AttachRequest request;
  request.rank = rank;
  request.world_size = world_size;
  request.space = testing::MixedSpace();
  request.rule = "adam";
  request.hyperparameters.assign(request.space.group_count(),
                                 EncodeHyperparameters({Hyperparameters()}));
  request.gradient_mode = "reduce";
  request.policy = policy;
  request.buckets = {2048, 512};
  return request;
}

TEST(MemoryNeed_OfTheState_IsWhatTheOwnerTakes, Exactly) {
  for (const PartitionPolicy policy :
       {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    for (Rank rank = 0; rank < 3; ++rank) {
      const AttachRequest request = Request(rank, 3, policy);
      const MemoryLayout layout(request.space);
      const absl::StatusOr<MemoryNeed> need = MemoryNeedOf(request, layout, true, true);
      ASSERT_TRUE(need.ok()) << need.status();
      Plan plan;
      plan.world_size = 3;
      plan.policy = policy;
      plan.partition = *MakePartition(request.space, 3, policy);
      const std::vector<Bucket> buckets = MakeBuckets(layout, plan, request.buckets);
      ShardStore::Options options;
      options.space = &request.space;
      options.buckets = &buckets;
      options.rank = rank;
      options.slot_counts.assign(request.space.group_count(), 2);
      const ShardMemory::Bytes state = ShardStore::BytesFor(options);
      EXPECT_EQ(static_cast<size_t>(need->slots_bytes), state.slots);
      EXPECT_EQ(static_cast<size_t>(need->ledger_bytes), state.ledger);
      EXPECT_EQ(static_cast<size_t>(need->record_bytes), RankRecord::Bytes(request));
      EXPECT_EQ(need->reduced_bytes, 0);
    }
  }
}

TEST(MemoryNeed_RanksElsewhere_AddReducedGradients, InModeReduceOnly) {
  AttachRequest request = Request(0, 2, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.space);
  const MemoryNeed need = *MemoryNeedOf(request, layout, true, false);
  // Adam has two slots; they lie a little apart.
  EXPECT_GT(need.reduced_bytes * 2, need.slots_bytes / 2);
  EXPECT_LE(need.reduced_bytes * 2, need.slots_bytes);
  EXPECT_EQ(need.parameters_bytes, need.gradients_bytes);
  EXPECT_EQ(need.total(), 2 * need.parameters_bytes + need.slots_bytes + need.ledger_bytes +
                              need.record_bytes + need.reduced_bytes);
  EXPECT_EQ(MemoryNeedOf(request, layout, false, false)->parameters_bytes, 0);
  request.gradient_mode = "averaged";
  EXPECT_EQ(MemoryNeedOf(request, layout, true, false)->reduced_bytes, 0);
}

TEST(MemoryNeed_BadHyperparameters_AreRefused, NamingTheGroup) {
  AttachRequest request = Request(0, 2, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.space);
  for (const std::string& bad : {std::string("garbage"), std::string(),
                                 EncodeHyperparameters(std::vector<Hyperparameters>(2))}) {
    request.hyperparameters[1] = bad;
    const absl::Status status = MemoryNeedOf(request, layout, true, true).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("group 1"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace optshard
