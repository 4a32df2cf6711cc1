#include "server/node/rank_memory.h"

#include <fcntl.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard {
namespace {

AttachRequest Request() {
  AttachRequest request;
  request.rank = 1;
  request.spec.world_size = 2;
  request.spec.space = testing::MixedSpace();
  request.spec.rules = {{"adam"}, {"adam"}};
  request.spec.gradient_mode = GradientMode::kReduce;
  request.spec.buckets = {2048, 512};
  return request;
}

std::shared_ptr<RankMemory> Create(bool has_parameters, MemoryBudget& budget) {
  const AttachRequest request = Request();
  const MemoryLayout layout(request.spec.space);
  const MemoryNeed need = *MemoryNeedOf(request, layout, has_parameters, true);
  absl::StatusOr<std::shared_ptr<RankMemory>> memory =
      RankMemory::Create(request, layout, need, budget);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

std::vector<UniqueFd> Duplicates(const RankMemory& memory) {
  std::vector<UniqueFd> duplicates;
  for (const int fd : memory.descriptors()) {
    duplicates.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  return duplicates;
}

TEST(RankMemory_Adopted_IsTheSameMemory, WithAllThatItHolds) {
  for (const bool has_parameters : {true, false}) {
    MemoryBudget budget;
    std::vector<UniqueFd> kept;
    {
      const std::shared_ptr<RankMemory> memory = Create(has_parameters, budget);
      memory->record().SetSynced();
      const ShardMemory shard = RankMemory::ShardOf(memory);
      std::memset(shard.slots, 1, shard.bytes.slots);
      std::memset(shard.ledger, 2, shard.bytes.ledger);
      std::memset(memory->replica()->gradients().data(), 3, memory->replica()->gradients().bytes());
      kept = Duplicates(*memory);
    }
    EXPECT_EQ(budget.reserved_bytes(), 0);

    const absl::StatusOr<std::shared_ptr<RankMemory>> adopted =
        RankMemory::Adopt(std::move(kept), budget);
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    EXPECT_GT(budget.reserved_bytes(), 0);
    EXPECT_EQ((*adopted)->first_request().rank, 1);
    EXPECT_TRUE((*adopted)->record().synced());
    EXPECT_EQ((*adopted)->replica()->has_parameters(), has_parameters);
    const ShardMemory shard = RankMemory::ShardOf(*adopted);
    EXPECT_EQ(static_cast<const char*>(shard.slots)[shard.bytes.slots - 1], 1);
    EXPECT_EQ(static_cast<const char*>(shard.ledger)[shard.bytes.ledger - 1], 2);
    EXPECT_EQ(static_cast<const char*>((*adopted)->replica()->gradients().data())[0], 3);
  }
}

TEST(RankMemory_OfWrongDescriptors_IsRefused, ByWhichever) {
  MemoryBudget budget;
  const std::shared_ptr<RankMemory> memory = Create(true, budget);
  const int64_t reserved = budget.reserved_bytes();
  for (size_t a = 0; a < memory->descriptors().size(); ++a) {
    std::vector<UniqueFd> swapped = Duplicates(*memory);
    std::swap(swapped[a], swapped[(a + 1) % swapped.size()]);
    const absl::Status refused = RankMemory::Adopt(std::move(swapped), budget).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << a << ": " << refused;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(RankMemory::Adopt({}, budget).status()));
  EXPECT_EQ(budget.reserved_bytes(), reserved);
}

}  // namespace
}  // namespace optshard
