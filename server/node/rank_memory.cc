#include "server/node/rank_memory.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/memory_layout.h"
#include "server/node/admission_record.h"
#include "server/node/step_bytes.h"
#include "server/shard/state/shard_ledger.h"

namespace optshard {
namespace {

// Of a record, which says whose it is; nothing is known before it is read.
SegmentLabel RecordLabel(SegmentKind kind) {
  SegmentLabel label;
  label.kind = kind;
  return label;
}

std::string RecordName() { return "the record of a rank"; }
std::string AdmissionName() { return "the record of a rank's param groups"; }
std::string SlotsName(Rank rank) { return absl::StrCat("the optimizer state of rank ", rank); }
std::string LedgerName(Rank rank) { return absl::StrCat("the ledger of rank ", rank); }

AdmissionRecord RecordOf(const Segment& segment) {
  return AdmissionRecord(segment.data(), segment.bytes());
}

// Takes the next descriptor, which is of this kind and size.
absl::StatusOr<Segment> AdoptOne(std::vector<UniqueFd>& descriptors, size_t* next,
                                 const SegmentLabel& label, size_t bytes, const std::string& what,
                                 const SegmentPlace& place) {
  if (*next == descriptors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the memory of a rank ends after ", *next,
                                                   " segments; the next one is ", what));
  }
  return place.Open(std::move(descriptors[(*next)++]), label, bytes, what);
}

}  // namespace

bool RankMemory::Admission::begun() const { return ShardLedger::Read(ledger.data()).has_value(); }

absl::StatusOr<std::shared_ptr<RankMemory>> RankMemory::Create(const AttachRequest& first,
                                                               const MemoryNeed& need,
                                                               const RankPlaces& places) {
  absl::StatusOr<Segment> record = places.records->Create(RecordLabel(SegmentKind::kRankRecord),
                                                          RankRecord::Bytes(), RecordName());
  if (!record.ok()) return record.status();
  std::shared_ptr<RankMemory> memory(new RankMemory(*std::move(record)));
  absl::StatusOr<std::shared_ptr<const Admission>> made = Make(first, need, nullptr, places);
  if (!made.ok()) return made.status();
  memory->first_ = std::make_shared<const AttachRequest>(first);
  memory->places_ = places;
  absl::MutexLock lock(&memory->mutex_);
  memory->admissions_.push_back(*std::move(made));
  return memory;
}

absl::StatusOr<std::shared_ptr<const RankMemory::Admission>> RankMemory::Make(
    const AttachRequest& request, const MemoryNeed& need, const ReplicaSegments* before,
    const RankPlaces& places) {
  const Rank rank = request.rank;
  const MemoryLayout layout(request.spec.space);
  const uint64_t digest = layout.Digest();
  auto made = std::make_shared<Admission>();
  made->spec = std::make_shared<const OptimizerSpec>(request.spec);
  absl::StatusOr<Segment> record = places.records->Create(
      RecordLabel(SegmentKind::kAdmission), AdmissionRecord::Bytes(request), AdmissionName());
  if (!record.ok()) return record.status();
  made->record = *std::move(record);
  RecordOf(made->record).SetRequest(request);
  absl::StatusOr<Segment> slots = places.slots->Create(LabelOf(SegmentKind::kSlots, rank, digest),
                                                       need.state.back().slots, SlotsName(rank));
  if (!slots.ok()) return slots.status();
  made->slots = *std::move(slots);
  absl::StatusOr<Segment> ledger = places.records->Create(
      LabelOf(SegmentKind::kLedger, rank, digest), need.state.back().ledger, LedgerName(rank));
  if (!ledger.ok()) return ledger.status();
  made->ledger = *std::move(ledger);
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> replica =
      before != nullptr
          ? ReplicaSegments::Grow(*before, layout, rank)
          : ReplicaSegments::Create(layout, rank,
                                    need.parameters_bytes > 0
                                        ? ReplicaSegments::Parts::kParametersAndGradients
                                        : ReplicaSegments::Parts::kGradients,
                                    places.replica);
  if (!replica.ok()) return replica.status();
  made->replica = *std::move(replica);
  return made;
}

absl::StatusOr<std::shared_ptr<RankMemory>> RankMemory::Adopt(std::vector<UniqueFd> descriptors,
                                                              const SegmentPlace& records,
                                                              PlacesOf places_of) {
  size_t next = 0;
  absl::StatusOr<Segment> record =
      AdoptOne(descriptors, &next, RecordLabel(SegmentKind::kRankRecord), RankRecord::Bytes(),
               RecordName(), records);
  if (!record.ok()) return record.status();
  std::shared_ptr<RankMemory> memory(new RankMemory(*std::move(record)));
  do {
    absl::Status adopted = memory->AdoptNext(descriptors, &next, records, places_of);
    if (!adopted.ok()) return adopted;
  } while (next < descriptors.size());
  return memory;
}

absl::Status RankMemory::AdoptNext(std::vector<UniqueFd>& descriptors, size_t* next,
                                   const SegmentPlace& records, PlacesOf places_of) {
  absl::MutexLock lock(&mutex_);
  auto adopted = std::make_shared<Admission>();
  // What is in the record says how large all the rest is.
  const absl::StatusOr<size_t> record_bytes =
      *next < descriptors.size() ? Segment::BytesOf(descriptors[*next].get(), AdmissionName()) : 0;
  if (!record_bytes.ok()) return record_bytes.status();
  absl::StatusOr<Segment> record = AdoptOne(descriptors, next, RecordLabel(SegmentKind::kAdmission),
                                            *record_bytes, AdmissionName(), records);
  if (!record.ok()) return record.status();
  absl::StatusOr<AttachRequest> request = RecordOf(*record).Request();
  if (!request.ok()) return request.status();
  adopted->record = *std::move(record);
  const Rank rank = request->rank;
  const int count = request->spec.space.admission_count();
  if (count != static_cast<int>(admissions_.size()) + 1 ||
      (first_ != nullptr && first_->rank != rank)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a record of admission %d of rank %d follows %d of its admissions",
                        count - 1, rank, admissions_.size()));
  }
  if (first_ == nullptr) {
    absl::StatusOr<RankPlaces> places = places_of(*request);
    if (!places.ok()) return places.status();
    places_ = *std::move(places);
  }
  const MemoryLayout layout(request->spec.space);
  const absl::StatusOr<MemoryNeed> need = MemoryNeedOf(*request, layout, true, 1);
  if (!need.ok()) return need.status();
  const uint64_t digest = layout.Digest();
  absl::StatusOr<Segment> slots =
      AdoptOne(descriptors, next, LabelOf(SegmentKind::kSlots, rank, digest),
               need->state.back().slots, SlotsName(rank), *places_.slots);
  if (!slots.ok()) return slots.status();
  adopted->slots = *std::move(slots);
  absl::StatusOr<Segment> ledger =
      AdoptOne(descriptors, next, LabelOf(SegmentKind::kLedger, rank, digest),
               need->state.back().ledger, LedgerName(rank), records);
  if (!ledger.ok()) return ledger.status();
  adopted->ledger = *std::move(ledger);
  absl::Status mapped = AdoptReplica(*adopted, descriptors, next, *request);
  if (!mapped.ok()) return mapped;
  adopted->spec = std::make_shared<const OptimizerSpec>(request->spec);
  if (first_ == nullptr) first_ = std::make_shared<const AttachRequest>(*std::move(request));
  admissions_.push_back(std::move(adopted));
  return absl::OkStatus();
}

absl::Status RankMemory::AdoptReplica(Admission& admission, std::vector<UniqueFd>& descriptors,
                                      size_t* next, const AttachRequest& request) {
  const auto take = [&](std::vector<UniqueFd>& of_replica) {
    if (*next < descriptors.size()) of_replica.push_back(std::move(descriptors[(*next)++]));
  };
  ReplicaSegments::Descriptors added;
  take(added.gradients);
  // On a device ranks share none.
  SegmentKind kind = SegmentKind::kParameters;
  if (request.device.empty()) {
    const absl::StatusOr<SegmentKind> there =
        *next < descriptors.size() ? Segment::KindOf(descriptors[*next].get(), "a rank's memory")
                                   : SegmentKind::kAdmission;
    if (!there.ok()) return there.status();
    kind = *there;
  }
  if (kind == SegmentKind::kParameters) take(added.parameters);
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> mapped = ReplicaSegments::Adopt(
      MemoryLayout(request.spec.space), request.rank, std::move(added), places_.replica,
      admissions_.empty() ? nullptr : admissions_.back()->replica.get());
  if (!mapped.ok()) return mapped.status();
  admission.replica = *std::move(mapped);
  return absl::OkStatus();
}

absl::Status RankMemory::Prepare(const AttachRequest& grown, const MemoryNeed& need) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::shared_ptr<const Admission>> made =
      Make(grown, need, admissions_.back()->replica.get(), places_);
  if (!made.ok()) return made.status();
  admissions_.push_back(*std::move(made));
  return absl::OkStatus();
}

void RankMemory::DropPrepared() {
  absl::MutexLock lock(&mutex_);
  if (HasPrepared()) admissions_.pop_back();
}

void RankMemory::TakePrepared() {
  absl::MutexLock lock(&mutex_);
  if (!HasPrepared()) return;
  const Admission& before = *admissions_[admissions_.size() - 2];
  const KeptState kept = *ShardLedger::Read(before.ledger.data());
  ShardLedger(admissions_.back()->ledger.data(), 0, 0, 0)
      .Begin(kept.generation + 1, kept.progress, ShardLedger::ReadReplacing(before.ledger.data()));
}

std::shared_ptr<const OptimizerSpec> RankMemory::prepared_spec() const {
  absl::MutexLock lock(&mutex_);
  return HasPrepared() ? admissions_.back()->spec : nullptr;
}

bool RankMemory::HasPrepared() const {
  return admissions_.size() > 1 && !admissions_.back()->begun();
}

int RankMemory::Count() const {
  return static_cast<int>(admissions_.size()) - (HasPrepared() ? 1 : 0);
}

std::vector<int> RankMemory::descriptors() const {
  std::vector<int> descriptors = {record_segment_.fd()};
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < admissions_.size(); ++i) {
    const Admission& each = *admissions_[i];
    const int admission = static_cast<int>(i);
    for (const int fd : {each.record.fd(), each.slots.fd(), each.ledger.fd(),
                         each.replica->gradients(admission).fd()}) {
      descriptors.push_back(fd);
    }
    if (each.replica->has_parameters()) {
      descriptors.push_back(each.replica->parameters(admission).fd());
    }
  }
  return descriptors;
}

int RankMemory::admissions() const {
  absl::MutexLock lock(&mutex_);
  return Count();
}

std::shared_ptr<const OptimizerSpec> RankMemory::spec(int admission) const {
  absl::MutexLock lock(&mutex_);
  return admissions_[admission]->spec;
}

std::shared_ptr<const ReplicaSegments> RankMemory::replica(int admissions) const {
  absl::MutexLock lock(&mutex_);
  if (admissions > static_cast<int>(admissions_.size())) return nullptr;
  return admissions_[admissions - 1]->replica;
}

bool RankMemory::synced(int admission) const {
  absl::MutexLock lock(&mutex_);
  return RecordOf(admissions_[admission]->record).synced();
}

bool RankMemory::all_synced() const {
  absl::MutexLock lock(&mutex_);
  const auto synced = [](const std::shared_ptr<const Admission>& each) {
    return RecordOf(each->record).synced();
  };
  return std::all_of(admissions_.begin(), admissions_.begin() + Count(), synced);
}

void RankMemory::SetAllSynced() {
  absl::MutexLock lock(&mutex_);
  for (int i = 0; i < Count(); ++i) RecordOf(admissions_[i]->record).SetSynced(true);
}

void RankMemory::SetLastUnsynced() {
  absl::MutexLock lock(&mutex_);
  if (Count() > 1) RecordOf(admissions_[Count() - 1]->record).SetSynced(false);
}

void RankMemory::OfferHyperparameters(StepNumber step, absl::string_view bytes) {
  absl::MutexLock lock(&mutex_);
  RecordOf(admissions_[Count() - 1]->record).hyperparameters().Offer(step, bytes);
}

void RankMemory::ReplaceHyperparameters(StepNumber finished, absl::string_view bytes) {
  absl::MutexLock lock(&mutex_);
  for (int i = 0; i < Count(); ++i) RecordOf(admissions_[i]->record).hyperparameters().Clear();
  RecordOf(admissions_[Count() - 1]->record).hyperparameters().Offer(finished, bytes);
}

std::string RankMemory::HyperparametersAfter(StepNumber finished) const {
  absl::MutexLock lock(&mutex_);
  StepBytes::Kept last;
  for (int i = 0; i < Count(); ++i) {
    StepBytes::Kept kept = RecordOf(admissions_[i]->record).hyperparameters().After(finished);
    // What an earlier admission has of the same step belongs to a step that was given up.
    if (kept.step != 0 && kept.step >= last.step) last = std::move(kept);
  }
  return std::move(last.bytes);
}

ShardMemory RankMemory::ShardOf(const std::shared_ptr<const Admission>& admission) {
  ShardMemory shard;
  shard.bytes = {admission->slots.bytes(), admission->ledger.bytes()};
  shard.slots = admission->slots.data();
  shard.ledger = admission->ledger.data();
  shard.owner = admission;
  return shard;
}

std::vector<ShardMemory> RankMemory::Shard() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ShardMemory> shard;
  for (int i = 0; i < Count(); ++i) shard.push_back(ShardOf(admissions_[i]));
  return shard;
}

absl::optional<ShardMemory> RankMemory::PreparedShard() const {
  absl::MutexLock lock(&mutex_);
  if (!HasPrepared()) return absl::nullopt;
  return ShardOf(admissions_.back());
}

}  // namespace optshard
