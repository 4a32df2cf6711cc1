#include "server/node/rank_memory.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace optshard {
namespace {

// In the order of descriptors(); the parameters are not there where another rank's are shared.
enum Descriptor : size_t { kRecord, kSlotsOf, kLedgerOf, kGradientsOf, kParametersOf };
constexpr size_t kFewest = kParametersOf;

// The record says whose it is; nothing is known before it is read.
SegmentLabel RecordLabel() {
  SegmentLabel label;
  label.kind = SegmentKind::kRankRecord;
  return label;
}

std::string RecordName() { return "the record of a rank"; }
std::string SlotsName(Rank rank) { return absl::StrCat("the optimizer state of rank ", rank); }
std::string LedgerName(Rank rank) { return absl::StrCat("the ledger of rank ", rank); }

}  // namespace

absl::StatusOr<std::shared_ptr<RankMemory>> RankMemory::Create(const AttachRequest& first,
                                                               const MemoryLayout& layout,
                                                               const MemoryNeed& need,
                                                               MemoryBudget& budget) {
  absl::StatusOr<Segment> record =
      Segment::Create(RecordLabel(), static_cast<size_t>(need.record_bytes), RecordName(), budget);
  if (!record.ok()) return record.status();
  std::shared_ptr<RankMemory> memory(new RankMemory(first, layout, *std::move(record)));
  memory->record_.SetFirstRequest(first);
  absl::StatusOr<Segment> slots =
      Segment::Create(LabelOf(SegmentKind::kSlots, first.rank, layout.Digest()),
                      static_cast<size_t>(need.slots_bytes), SlotsName(first.rank), budget);
  if (!slots.ok()) return slots.status();
  memory->slots_ = *std::move(slots);
  absl::StatusOr<Segment> ledger =
      Segment::Create(LabelOf(SegmentKind::kLedger, first.rank, layout.Digest()),
                      static_cast<size_t>(need.ledger_bytes), LedgerName(first.rank), budget);
  if (!ledger.ok()) return ledger.status();
  memory->ledger_ = *std::move(ledger);
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> replica = ReplicaSegments::Create(
      layout, first.rank,
      need.parameters_bytes > 0 ? ReplicaSegments::Parts::kParametersAndGradients
                                : ReplicaSegments::Parts::kGradients,
      budget);
  if (!replica.ok()) return replica.status();
  memory->replica_ = *std::move(replica);
  return memory;
}

absl::StatusOr<std::shared_ptr<RankMemory>> RankMemory::Adopt(std::vector<UniqueFd> descriptors,
                                                              MemoryBudget& budget) {
  if (descriptors.size() < kFewest) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the memory of a rank has %d descriptors, expected at least %d",
                        descriptors.size(), kFewest));
  }
  // What is in the record says how large all the rest is.
  const absl::StatusOr<size_t> record_bytes =
      Segment::BytesOf(descriptors[kRecord].get(), RecordName());
  if (!record_bytes.ok()) return record_bytes.status();
  absl::StatusOr<Segment> record = Segment::Adopt(std::move(descriptors[kRecord]), RecordLabel(),
                                                  *record_bytes, RecordName(), budget);
  if (!record.ok()) return record.status();
  absl::StatusOr<AttachRequest> first = RankRecord(record->data()).FirstRequest();
  if (!first.ok()) return first.status();
  const MemoryLayout layout(first->spec.space);
  const Rank rank = first->rank;
  const bool has_parameters = descriptors.size() > kParametersOf;
  const absl::StatusOr<MemoryNeed> need = MemoryNeedOf(*first, layout, has_parameters, true);
  if (!need.ok()) return need.status();

  std::shared_ptr<RankMemory> memory(new RankMemory(*std::move(first), layout, *std::move(record)));
  absl::StatusOr<Segment> slots = Segment::Adopt(
      std::move(descriptors[kSlotsOf]), LabelOf(SegmentKind::kSlots, rank, layout.Digest()),
      static_cast<size_t>(need->slots_bytes), SlotsName(rank), budget);
  if (!slots.ok()) return slots.status();
  memory->slots_ = *std::move(slots);
  absl::StatusOr<Segment> ledger = Segment::Adopt(
      std::move(descriptors[kLedgerOf]), LabelOf(SegmentKind::kLedger, rank, layout.Digest()),
      static_cast<size_t>(need->ledger_bytes), LedgerName(rank), budget);
  if (!ledger.ok()) return ledger.status();
  memory->ledger_ = *std::move(ledger);
  ReplicaSegments::Descriptors of_replica;
  if (has_parameters) of_replica.parameters.push_back(std::move(descriptors[kParametersOf]));
  of_replica.gradients.push_back(std::move(descriptors[kGradientsOf]));
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> replica =
      ReplicaSegments::Adopt(layout, rank, std::move(of_replica), budget);
  if (!replica.ok()) return replica.status();
  memory->replica_ = *std::move(replica);
  return memory;
}

std::vector<int> RankMemory::descriptors() const {
  std::vector<int> descriptors(kFewest);
  descriptors[kRecord] = record_segment_.fd();
  descriptors[kSlotsOf] = slots_.fd();
  descriptors[kLedgerOf] = ledger_.fd();
  descriptors[kGradientsOf] = replica_->gradients().fd();
  if (replica_->has_parameters()) descriptors.push_back(replica_->parameters().fd());
  return descriptors;
}

ShardMemory RankMemory::ShardOf(const std::shared_ptr<RankMemory>& memory) {
  ShardMemory shard;
  shard.bytes = {memory->slots_.bytes(), memory->ledger_.bytes()};
  shard.slots = memory->slots_.data();
  shard.ledger = memory->ledger_.data();
  shard.owner = memory;
  return shard;
}

}  // namespace optshard
