#include "server/node/memory_need.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "common/attach/doorbell.h"
#include "common/generation_shape.h"
#include "common/link/memory_budget.h"
#include "common/plan.h"
#include "gtest/gtest.h"
#include "server/node/admission_record.h"
#include "server/node/doorbell_shape.h"
#include "server/node/rank_record.h"
#include "server/shard/state/shard_store.h"
#include "server/update/update_rule.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard {
namespace {

AttachRequest Request(Rank rank, int world_size, PartitionPolicy policy) {
  AttachRequest request;
  request.rank = rank;
  request.spec.world_size = world_size;
  request.spec.space = testing::MixedSpace();
  request.spec.rules = {{"adam"}, {"adam"}};
  request.spec.gradient_mode = GradientMode::kReduce;
  request.spec.policy = policy;
  request.spec.buckets = {2048, 512};
  return request;
}

TEST(MemoryNeed_OfTheState_IsWhatTheOwnerTakes, Exactly) {
  for (const PartitionPolicy policy :
       {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    for (Rank rank = 0; rank < 3; ++rank) {
      const AttachRequest request = Request(rank, 3, policy);
      const MemoryLayout layout(request.spec.space);
      const absl::StatusOr<MemoryNeed> need = MemoryNeedOf(request, layout, true, 1);
      ASSERT_TRUE(need.ok()) << need.status();
      Plan plan;
      plan.world_size = 3;
      plan.policy = policy;
      plan.partition = *MakePartition(request.spec.space, 3, policy);
      ShardStore::Options options;
      options.shape = GenerationShape::Make(request.spec, plan);
      options.rank = rank;
      options.slots.assign(request.spec.space.group_count(), std::vector<Slot>(2));
      const ShardMemory::Bytes state = ShardStore::BytesFor(options);
      EXPECT_EQ(static_cast<size_t>(need->slots_bytes), state.slots);
      EXPECT_EQ(static_cast<size_t>(need->ledger_bytes), state.ledger);
      EXPECT_EQ(static_cast<size_t>(need->record_bytes),
                RankRecord::Bytes() + AdmissionRecord::Bytes(request));
      EXPECT_EQ(need->reduced_bytes, 0);
    }
  }
}

TEST(MemoryNeed_RanksElsewhere_AddReducedGradients, InModeReduceOnly) {
  AttachRequest request = Request(0, 2, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.spec.space);
  const MemoryNeed need = *MemoryNeedOf(request, layout, true, 2);
  // Adam has two slots; they lie a little apart.
  EXPECT_GT(need.reduced_bytes * 2, need.slots_bytes / 2);
  EXPECT_LE(need.reduced_bytes * 2, need.slots_bytes);
  EXPECT_EQ(need.parameters_bytes, need.gradients_bytes);
  EXPECT_EQ(need.total(), 2 * need.parameters_bytes + need.slots_bytes + need.ledger_bytes +
                              need.record_bytes + need.reduced_bytes + need.message_bytes +
                              need.doorbell_bytes + need.state_window_bytes);
  EXPECT_EQ(MemoryNeedOf(request, layout, false, 2)->parameters_bytes, 0);
  request.spec.gradient_mode = GradientMode::kAveraged;
  EXPECT_EQ(MemoryNeedOf(request, layout, true, 2)->reduced_bytes, 0);
}

TEST(MemoryNeed_OnADevice_IsNoMemoryOfTheHost, ButOfTransfersAndBookkeeping) {
  constexpr int64_t kMiB = 1 << 20;
  AttachRequest request = Request(0, 2, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.spec.space);
  const MemoryNeed on_host = *MemoryNeedOf(request, layout, true, 2);
  request.device = "GPU-0";
  const MemoryNeed need = *MemoryNeedOf(request, layout, true, 2);
  EXPECT_EQ(need.transfer_bytes, 9 * kMiB);
  EXPECT_EQ(need.total(), need.transfer_bytes + need.ledger_bytes + need.record_bytes +
                              need.doorbell_bytes + need.state_window_bytes);
  EXPECT_EQ(need.device_bytes(),
            on_host.parameters_bytes + on_host.gradients_bytes + on_host.slots_bytes);
  EXPECT_EQ(on_host.device_bytes(), 0);

  request.state_on_host = true;
  const MemoryNeed offloaded = *MemoryNeedOf(request, layout, true, 2);
  EXPECT_EQ(offloaded.transfer_bytes, (9 + 12) * kMiB);
  EXPECT_EQ(offloaded.total() - offloaded.transfer_bytes,
            need.total() - need.transfer_bytes + on_host.slots_bytes);
  EXPECT_EQ(offloaded.device_bytes(), on_host.parameters_bytes + on_host.gradients_bytes);
  // While the one engine is made, the other is still there.
  EXPECT_EQ(BytesToGrow(offloaded, offloaded), offloaded.transfer_bytes);

  // Larger than a window, and needed whole: of both arrays three windows that hold it.
  request.spec.space = ParameterSpace({GroupSpec{{{"matrix", {1024, 1024}, DType::kFloat32}}}});
  request.spec.rules = {{"lamb"}};
  request.spec.world_size = 1;
  EXPECT_EQ(MemoryNeedOf(request, MemoryLayout(request.spec.space), true, 1)->transfer_bytes,
            (9 + 6 * 4) * kMiB);
}

TEST(MemoryNeed_MessageMembers_AreOneOfEachNode, OrAllRanksOverGloo) {
  EXPECT_EQ(MessageMembers(8, 8, HostPlaneKind::kAuto), 1);
  EXPECT_EQ(MessageMembers(8, 8, HostPlaneKind::kShm), 1);
  EXPECT_EQ(MessageMembers(8, 2, HostPlaneKind::kAuto), 4);
  EXPECT_EQ(MessageMembers(7, 2, HostPlaneKind::kAuto), 4);
  EXPECT_EQ(MessageMembers(2, 4, HostPlaneKind::kAuto), 1);
  EXPECT_EQ(MessageMembers(8, 8, HostPlaneKind::kGloo), 8);
  EXPECT_EQ(MessageMembers(1, 1, HostPlaneKind::kGloo), 1);
}

TEST(MemoryNeed_OfMessages_IsWhatOthersSendAtOnce_UpToTheWindow, AndStaging) {
  AttachRequest request = Request(0, 4, PartitionPolicy::kBalanced);
  // 24 MiB of each rank, in buckets of 4 MiB; eight of these are staging.
  request.spec.space = ParameterSpace({GroupSpec{{{"matrix", {98304, 256}, DType::kFloat32}}}});
  request.spec.rules = {{"adam"}};
  request.spec.buckets = BucketOptions();
  const MemoryLayout layout(request.spec.space);
  const auto messages = [&](int members) {
    return MemoryNeedOf(request, layout, true, members)->message_bytes;
  };
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kStaging = 32 * kMiB;
  EXPECT_EQ(messages(1), 0);
  EXPECT_EQ(messages(2), 24 * kMiB + kStaging);
  EXPECT_EQ(messages(3), 48 * kMiB + kStaging);
  EXPECT_EQ(messages(4), 64 * kMiB + kStaging);
  // One bucket is always received.
  EXPECT_EQ(messages(33), 128 * kMiB + kStaging);
  request.spec.gradient_mode = GradientMode::kAveraged;
  EXPECT_EQ(messages(4), kStaging);
}

TEST(MemoryNeed_MainGradients_TakeTwiceTheBytesOfTheParameters, InPagesEach) {
  AttachRequest request = Request(0, 1, PartitionPolicy::kGreedy);
  ParameterSpec parameter = {"w", {1 << 20}, DType::kBFloat16};
  parameter.main_gradient = true;
  request.spec.space = ParameterSpace({GroupSpec{{parameter}}});
  request.spec.rules = {{"adam"}};
  const MemoryLayout layout(request.spec.space);
  const MemoryNeed need = *MemoryNeedOf(request, layout, true, 1);
  EXPECT_EQ(need.parameters_bytes, 4096 + (2 << 20));
  EXPECT_EQ(need.gradients_bytes, 4096 + (4 << 20));
}

TEST(MemoryNeed_RuleOfEachGroup_CountsItsSlots, AndThoseOfOneNumber) {
  AttachRequest request = Request(0, 1, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.spec.space);
  const auto need_of = [&](const std::string& first, const std::string& second) {
    request.spec.rules = {{first}, {second}};
    return MemoryNeedOf(request, layout, true, 1).value();
  };
  // One slot, two, and two and one that is one number.
  const MemoryNeed lion = need_of("lion", "lion");
  const MemoryNeed adam = need_of("adam", "adam");
  const MemoryNeed nadam = need_of("lion", "nadam");
  EXPECT_EQ(adam.slots_bytes, 2 * lion.slots_bytes);
  EXPECT_GT(nadam.slots_bytes, lion.slots_bytes);
  EXPECT_EQ(nadam.slots_bytes + need_of("adam", "lion").slots_bytes,
            adam.slots_bytes + lion.slots_bytes);
  EXPECT_GT(nadam.ledger_bytes, adam.ledger_bytes);
}

TEST(MemoryNeed_OfWholeParameters_CountsWorkspaces, OfTheLargestForEachThatIsUpdatedAtOnce) {
  AttachRequest request = Request(0, 1, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.spec.space);
  EXPECT_EQ(MemoryNeedOf(request, layout, true, 1)->workspace_bytes, 0);
  request.spec.rules = {{"adam"}, {"lamb"}};
  const MemoryNeed need = *MemoryNeedOf(request, layout, true, 1);
  constexpr int64_t kLargest = int64_t{3008} * 4;  // of 3000 elements, in whole lines
  for (const int threads : {1, 3, 100}) {
    request.threads = threads;
    EXPECT_EQ(MemoryNeedOf(request, layout, true, 1)->workspace_bytes,
              std::min(threads, 4) * kLargest);  // there are four parameters
  }
  EXPECT_EQ(need.total(), need.own_bytes() + need.parameters_bytes + need.gradients_bytes +
                              need.slots_bytes + need.ledger_bytes + need.record_bytes +
                              need.doorbell_bytes);
}

TEST(MemoryNeed_OfSlotsWithShapesOfTheirOwn, CountsWhatTheyHold) {
  AttachRequest request = Request(0, 1, PartitionPolicy::kGreedy);
  ParameterSpec matrix;
  matrix.name = "matrix";
  matrix.shape = {2000, 3000};
  request.spec.space = ParameterSpace({GroupSpec{{matrix}}});
  request.spec.rules = {{"adafactor"}};
  const MemoryLayout layout(request.spec.space);
  const MemoryNeed need = *MemoryNeedOf(request, layout, true, 1);
  EXPECT_GE(need.slots_bytes, 5000 * 4);
  EXPECT_LT(need.slots_bytes, 5000 * 4 + 8192);  // they lie a little apart
  EXPECT_GE(need.workspace_bytes, int64_t{2000} * 3000 * 4);
}

TEST(MemoryNeed_OfTheDoorbell_CountsItsSegment, AndTheServersCopyOfTheWindow) {
  const AttachRequest request = Request(0, 1, PartitionPolicy::kGreedy);
  const MemoryNeed need = *MemoryNeedOf(request, MemoryLayout(request.spec.space), true, 1);
  const Doorbell doorbell =
      *Doorbell::Create(0, DoorbellShapeOf(request.spec), MemoryBudget::Unlimited());
  EXPECT_EQ(static_cast<size_t>(need.doorbell_bytes), DoorbellShapeOf(request.spec).bytes());
  EXPECT_EQ(need.state_window_bytes, static_cast<int64_t>(doorbell.state_window().size() * 8));
  EXPECT_GE(need.own_bytes(), need.state_window_bytes);
}

TEST(MemoryNeed_OfMoreThanANumberHolds, IsTheLargestNumber) {
  MemoryNeed need;
  need.parameters_bytes = need.gradients_bytes = need.slots_bytes = int64_t{1} << 62;
  EXPECT_EQ(need.total(), std::numeric_limits<int64_t>::max());
}

TEST(MemoryNeed_BadHyperparameters_AreRefused, NamingTheGroup) {
  AttachRequest request = Request(0, 2, PartitionPolicy::kGreedy);
  const MemoryLayout layout(request.spec.space);
  request.spec.rules[1].hyperparameters.Set("eps", -1.0);
  const absl::Status status = MemoryNeedOf(request, layout, true, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("param group 1"), absl::string_view::npos) << status;
}

// It is reserved where it is made, before the rest.
TEST(MemoryNeed_ToGrow, IsWithoutTheNextDoorbell) {
  MemoryNeed before;
  before.slots_bytes = 1000;
  before.doorbell_bytes = 64;
  MemoryNeed grown = before;
  grown.doorbell_bytes = 128;
  EXPECT_EQ(BytesToGrow(before, grown), 0);
  grown.slots_bytes = 1700;
  grown.ledger_bytes = 40;
  EXPECT_EQ(BytesToGrow(before, grown), 740);
}

}  // namespace
}  // namespace optshard
