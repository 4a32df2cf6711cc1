// All the memory of a rank that may outlive the shard server, as a manifest: a list of labelled
// segments that only grows, whose descriptors another process can hold.
//
//   the rank's record              its trainers, blobs and last load (rank_record.h)
//   then, for each admission of param groups
//     a record                     what the rank is with it (admission_record.h)
//     slots, ledger                the optimizer state; the last ledger is the one that counts
//     gradients
//     parameters                   unless another rank's are shared
#ifndef OPTSHARD_SERVER_NODE_RANK_MEMORY_H_
#define OPTSHARD_SERVER_NODE_RANK_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/attach/attachment.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/ids.h"
#include "common/link/segment.h"
#include "common/link/segment_place.h"
#include "common/link/unique_fd.h"
#include "common/optimizer_spec.h"
#include "server/node/memory_need.h"
#include "server/node/rank_places.h"
#include "server/node/rank_record.h"
#include "server/shard/state/shard_memory.h"

namespace optshard {

// An admission after the first one is *prepared* until its ledger has begun: the rank has the
// memory, and whether all ranks go on with it is not known yet. There is one at most, the last.
// Thread-safe, but for record() and what is in the segments.
class RankMemory {
 public:
  // All zeros, except for the record of the first trainer's request. `need` is computed from it.
  // RESOURCE_EXHAUSTED as SegmentPlace::Create.
  static absl::StatusOr<std::shared_ptr<RankMemory>> Create(const AttachRequest& first,
                                                            const MemoryNeed& need,
                                                            const RankPlaces& places);

  // The memory that an earlier server has left, given by its descriptors(): its records in memory
  // of the host, and then, where `places_of` the first trainer's request says. INVALID_ARGUMENT as
  // SegmentPlace::Open, and what `places_of` returns.
  using PlacesOf = absl::FunctionRef<absl::StatusOr<RankPlaces>(const AttachRequest& first)>;
  static absl::StatusOr<std::shared_ptr<RankMemory>> Adopt(std::vector<UniqueFd> descriptors,
                                                           const SegmentPlace& records,
                                                           PlacesOf places_of);

  // Prepares one admission more, the last one of the spec of `grown`, which `need` is computed
  // from. Where it fails, nothing has changed. RESOURCE_EXHAUSTED as SegmentPlace::Create.
  absl::Status Prepare(const AttachRequest& grown, const MemoryNeed& need);
  // What is prepared goes; where nothing is, nothing happens.
  void DropPrepared();
  // All ranks have gone on with what is prepared: an owner that starts over the memory does so,
  // too, after the same step.
  void TakePrepared();
  // What is prepared; null: nothing.
  std::shared_ptr<const OptimizerSpec> prepared_spec() const;

  // For a process that holds them beyond the end of this one: what is prepared, too.
  std::vector<int> descriptors() const;

  // Those that the rank goes on with.
  int admissions() const;
  // The first trainer's request, and what the rank is with the admissions up to this one, which is
  // not prepared any more.
  const AttachRequest& first_request() const { return *first_; }
  std::shared_ptr<const OptimizerSpec> spec(int admission) const;

  // That of the first so many admissions, the prepared one may be among them; null: there are
  // fewer.
  std::shared_ptr<const ReplicaSegments> replica(int admissions) const;

  // Whether the parameters of this admission have the job's first values. Once those of the first
  // one have, the rank is worth keeping.
  bool synced(int admission = 0) const;
  bool all_synced() const;
  void SetAllSynced();
  // All ranks synchronise again: what the last admission has are not the job's values any more.
  // Nothing happens where there is one admission.
  void SetLastUnsynced();

  // With which hyperparameters steps are made, as StepBytes, for the owner of a server that takes
  // over: as the trainer's doorbell has them, of all groups of the admission that was the last.
  void OfferHyperparameters(StepNumber step, absl::string_view bytes);
  void ReplaceHyperparameters(StepNumber finished, absl::string_view bytes);
  std::string HyperparametersAfter(StepNumber finished) const;  // empty: not known

  // What the shard owner uses, by admission; keeps it mapped.
  std::vector<ShardMemory> Shard() const;
  // That of what is prepared.
  absl::optional<ShardMemory> PreparedShard() const;

  RankRecord& record() { return record_; }

 private:
  struct Admission {
    std::shared_ptr<const OptimizerSpec> spec;
    Segment record;
    Segment slots;
    Segment ledger;
    std::shared_ptr<const ReplicaSegments> replica;  // of this one and all before

    bool begun() const;
  };
  using Admissions = std::vector<std::shared_ptr<const Admission>>;

  explicit RankMemory(Segment record)
      : record_segment_(std::move(record)), record_(record_segment_.data()) {}

  static absl::StatusOr<std::shared_ptr<const Admission>> Make(const AttachRequest& request,
                                                               const MemoryNeed& need,
                                                               const ReplicaSegments* before,
                                                               const RankPlaces& places);
  absl::Status AdoptNext(std::vector<UniqueFd>& descriptors, size_t* next,
                         const SegmentPlace& records, PlacesOf places_of);
  absl::Status AdoptReplica(Admission& admission, std::vector<UniqueFd>& descriptors, size_t* next,
                            const AttachRequest& request) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  static ShardMemory ShardOf(const std::shared_ptr<const Admission>& admission);
  bool HasPrepared() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  int Count() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Segment record_segment_;
  RankRecord record_;
  std::shared_ptr<const AttachRequest> first_;
  RankPlaces places_;
  mutable absl::Mutex mutex_;
  Admissions admissions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_MEMORY_H_
