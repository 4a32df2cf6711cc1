#include "server/node/rank_memory.h"

#include <fcntl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/link/device_segments.h"
#include "gtest/gtest.h"
#include "server/shard/state/shard_ledger.h"
#include "tests/server/node/host_memory.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/testing/fake_device.h"

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
  const MemoryNeed need = *MemoryNeedOf(request, layout, has_parameters, 1);
  absl::StatusOr<std::shared_ptr<RankMemory>> memory =
      RankMemory::Create(request, need, testing::OnHost(budget));
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

// With one group more, whose rule keeps another number of slots.
AttachRequest GrownRequest() {
  AttachRequest request = Request();
  std::vector<GroupSpec> groups = request.spec.space.groups();
  ParameterSpec added;
  added.name = "added";
  added.shape = {5000};
  groups.push_back({{added}, 1});
  request.spec.space = ParameterSpace(std::move(groups));
  request.spec.rules.push_back({"nadam"});
  return request;
}

void Prepare(RankMemory& memory, bool has_parameters) {
  const AttachRequest grown = GrownRequest();
  const MemoryNeed need = *MemoryNeedOf(grown, MemoryLayout(grown.spec.space), has_parameters, 1);
  const absl::Status prepared = memory.Prepare(grown, need);
  ASSERT_TRUE(prepared.ok()) << prepared;
}

// As an owner does that has finished three steps.
void Begin(const ShardMemory& shard) {
  ShardLedger(shard.ledger, 0, 0, 0).Begin(7, {3, StepOutcome::kIdle});
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
      memory->SetAllSynced();
      const ShardMemory shard = memory->Shard().at(0);
      std::memset(shard.slots, 1, shard.bytes.slots);
      std::memset(shard.ledger, 2, shard.bytes.ledger);
      const Segment& gradients = memory->replica(1)->gradients();
      std::memset(gradients.data(), 3, gradients.bytes());
      kept = Duplicates(*memory);
    }
    EXPECT_EQ(budget.reserved_bytes(), 0);

    const absl::StatusOr<std::shared_ptr<RankMemory>> adopted =
        testing::AdoptOnHost(std::move(kept), budget);
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    EXPECT_GT(budget.reserved_bytes(), 0);
    EXPECT_EQ((*adopted)->first_request().rank, 1);
    EXPECT_TRUE((*adopted)->synced());
    EXPECT_EQ((*adopted)->replica(1)->has_parameters(), has_parameters);
    ASSERT_EQ((*adopted)->admissions(), 1);
    const ShardMemory shard = (*adopted)->Shard().at(0);
    EXPECT_EQ(static_cast<const char*>(shard.slots)[shard.bytes.slots - 1], 1);
    EXPECT_EQ(static_cast<const char*>(shard.ledger)[shard.bytes.ledger - 1], 2);
    EXPECT_EQ(static_cast<const char*>((*adopted)->replica(1)->gradients().data())[0], 3);
  }
}

TEST(RankMemory_OfWrongDescriptors_IsRefused, ByWhichever) {
  MemoryBudget budget;
  const std::shared_ptr<RankMemory> memory = Create(true, budget);
  const int64_t reserved = budget.reserved_bytes();
  for (size_t a = 0; a < memory->descriptors().size(); ++a) {
    std::vector<UniqueFd> swapped = Duplicates(*memory);
    std::swap(swapped[a], swapped[(a + 1) % swapped.size()]);
    const absl::Status refused = testing::AdoptOnHost(std::move(swapped), budget).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << a << ": " << refused;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(testing::AdoptOnHost({}, budget).status()));
  EXPECT_EQ(budget.reserved_bytes(), reserved);
}

TEST(RankMemory_Prepared_IsKept_AndCountsOnlyOnceItIsTaken, AndThenGoesOnFromTheSameStep) {
  for (const bool has_parameters : {true, false}) {
    MemoryBudget budget;
    std::shared_ptr<RankMemory> memory = Create(has_parameters, budget);
    memory->SetAllSynced();
    Begin(memory->Shard().back());
    void* const slots = memory->Shard().at(0).slots;
    Prepare(*memory, has_parameters);
    EXPECT_EQ(memory->Shard().at(0).slots, slots);
    const size_t segments = has_parameters ? 11 : 9;
    EXPECT_EQ(memory->descriptors().size(), segments);
    memory = *testing::AdoptOnHost(Duplicates(*memory), budget);
    EXPECT_EQ(memory->admissions(), 1);
    ASSERT_NE(memory->prepared_spec(), nullptr);
    EXPECT_EQ(memory->prepared_spec()->Digest(), GrownRequest().spec.Digest());
    EXPECT_TRUE(memory->PreparedShard().has_value());
    EXPECT_EQ(memory->Shard().size(), 1u);
    EXPECT_TRUE(memory->all_synced());

    memory->TakePrepared();
    memory = *testing::AdoptOnHost(Duplicates(*memory), budget);
    EXPECT_EQ(memory->admissions(), 2);
    EXPECT_EQ(memory->prepared_spec(), nullptr);
    EXPECT_FALSE(memory->PreparedShard().has_value());
    ASSERT_EQ(memory->Shard().size(), 2u);
    const absl::optional<KeptState> kept = ShardLedger::Read(memory->Shard().at(1).ledger);
    ASSERT_TRUE(kept.has_value());
    EXPECT_EQ(kept->generation, 8u);
    EXPECT_EQ(kept->progress.finished, 3u);
    EXPECT_EQ(memory->replica(2)->regions().size(), 1 + memory->replica(1)->regions().size());
    EXPECT_EQ(memory->replica(3), nullptr);
    EXPECT_TRUE(memory->synced());
    EXPECT_FALSE(memory->all_synced());
    memory->SetAllSynced();
    EXPECT_TRUE(memory->all_synced());
  }
}

TEST(RankMemory_PreparedAndDropped_IsAsBefore, AndTakesNoMemory) {
  MemoryBudget budget;
  const std::shared_ptr<RankMemory> memory = Create(true, budget);
  Begin(memory->Shard().back());
  const int64_t reserved = budget.reserved_bytes();
  const std::vector<int> before = memory->descriptors();
  Prepare(*memory, true);
  EXPECT_GT(budget.reserved_bytes(), reserved);
  memory->DropPrepared();
  EXPECT_EQ(budget.reserved_bytes(), reserved);
  EXPECT_EQ(memory->descriptors(), before);
  memory->DropPrepared();
  memory->TakePrepared();
  EXPECT_EQ(memory->descriptors(), before);
  EXPECT_EQ(memory->admissions(), 1);
}

TEST(RankMemory_Hyperparameters_AreThoseOfTheLastStep, AcrossAdmissionsAndServers) {
  MemoryBudget budget;
  const std::shared_ptr<RankMemory> memory = Create(true, budget);
  Begin(memory->Shard().back());
  EXPECT_EQ(memory->HyperparametersAfter(10), "");
  memory->OfferHyperparameters(2, "two");
  memory->OfferHyperparameters(4, "given up before groups came");
  Prepare(*memory, true);
  EXPECT_EQ(memory->HyperparametersAfter(3), "two");
  memory->TakePrepared();
  EXPECT_EQ(memory->HyperparametersAfter(3), "two");
  memory->OfferHyperparameters(4, "four");
  EXPECT_EQ(memory->HyperparametersAfter(3), "two");
  EXPECT_EQ(memory->HyperparametersAfter(4), "four");
  const auto next = testing::AdoptOnHost(Duplicates(*memory), budget);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->HyperparametersAfter(3), "two");
  EXPECT_EQ((*next)->HyperparametersAfter(9), "four");
  (*next)->ReplaceHyperparameters(1, "loaded");
  EXPECT_EQ(memory->HyperparametersAfter(9), "loaded");
  EXPECT_EQ(memory->HyperparametersAfter(0), "");
}

TEST(RankMemory_ThatCannotGrow_IsAsBefore, WithinItsBudget) {
  const int64_t most = [] {
    MemoryBudget unlimited;
    const std::shared_ptr<RankMemory> memory = Create(true, unlimited);
    return unlimited.reserved_bytes();
  }();
  MemoryBudget budget(most + 4096);
  const std::shared_ptr<RankMemory> memory = Create(true, budget);
  const AttachRequest grown = GrownRequest();
  const MemoryNeed need = *MemoryNeedOf(grown, MemoryLayout(grown.spec.space), true, 1);
  const absl::Status refused = memory->Prepare(grown, need);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(memory->descriptors().size(), 6u);
  EXPECT_EQ(budget.reserved_bytes(), most);
}

TEST(RankMemory_GrownOfWrongDescriptors_IsRefused, ByWhichever) {
  MemoryBudget budget;
  const std::shared_ptr<RankMemory> memory = Create(true, budget);
  Begin(memory->Shard().back());
  Prepare(*memory, true);
  const int64_t reserved = budget.reserved_bytes();
  for (size_t a = 0; a < memory->descriptors().size(); ++a) {
    std::vector<UniqueFd> swapped = Duplicates(*memory);
    std::swap(swapped[a], swapped[(a + 1) % swapped.size()]);
    const absl::Status refused = testing::AdoptOnHost(std::move(swapped), budget).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << a << ": " << refused;
    std::vector<UniqueFd> fewer = Duplicates(*memory);
    fewer.resize(a);
    // The whole first admission is a rank's memory, too; so is it without parameters.
    const absl::Status cut = testing::AdoptOnHost(std::move(fewer), budget).status();
    EXPECT_EQ(cut.ok(), a == 5 || a == 6) << a << ": " << cut;
  }
  EXPECT_EQ(budget.reserved_bytes(), reserved);
}

// Records and ledgers are the host's all the same.
TEST(RankMemory_OnADevice_IsTheSameMemory, ForTheNextServer) {
  for (const bool state_on_host : {false, true}) {
    MemoryBudget budget;
    const testing::FakeDevices devices;
    AttachRequest request = Request();
    request.device = "GPU-0";
    request.state_on_host = state_on_host;
    const auto places_of = [&](const AttachRequest& of) -> absl::StatusOr<RankPlaces> {
      EXPECT_EQ(of.device, "GPU-0");
      EXPECT_EQ(of.state_on_host, state_on_host);
      RankPlaces places = testing::OnHost(budget);
      testing::FakeDevices here = devices;
      places.replica = std::make_shared<DeviceSegments>(here.Add("fake:0", of.device));
      if (!state_on_host) places.slots = places.replica;
      return places;
    };
    const MemoryNeed need = *MemoryNeedOf(request, MemoryLayout(request.spec.space), true, 2);
    std::shared_ptr<RankMemory> memory = *RankMemory::Create(request, need, *places_of(request));
    // Whole pages, and one for each label: of a record, an admission, a ledger, and slots.
    const int64_t exact = need.total() - need.own_bytes() - need.doorbell_bytes;
    EXPECT_GE(budget.reserved_bytes(), exact);
    EXPECT_LE(budget.reserved_bytes(), exact + (state_on_host ? 4 : 3) * 8192);
    EXPECT_GT(need.slots_bytes, 8192);
    const ShardMemory shard = memory->Shard().at(0);
    EXPECT_EQ(*static_cast<const char*>(shard.slots), 0);
    std::memset(shard.slots, 1, shard.bytes.slots);
    const Segment& gradients = memory->replica(1)->gradients();
    std::memset(gradients.data(), 2, gradients.bytes());
    Begin(shard);

    for (size_t a = 1; a + 1 < memory->descriptors().size(); ++a) {
      std::vector<UniqueFd> swapped = Duplicates(*memory);
      std::swap(swapped[a], swapped[a + 1]);
      const HostSegments records(budget);
      const absl::Status refused =
          RankMemory::Adopt(std::move(swapped), records, places_of).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << a << ": " << refused;
    }
    std::vector<UniqueFd> kept = Duplicates(*memory);
    memory = nullptr;
    const HostSegments records(budget);
    memory = *RankMemory::Adopt(std::move(kept), records, places_of);
    EXPECT_EQ(memory->first_request().device, "GPU-0");
    const ShardMemory next = memory->Shard().at(0);
    EXPECT_EQ(std::string(static_cast<const char*>(next.slots), next.bytes.slots),
              std::string(next.bytes.slots, 1));
    EXPECT_EQ(*static_cast<const char*>(memory->replica(1)->gradients().data()), 2);
  }
}

}  // namespace
}  // namespace optshard
