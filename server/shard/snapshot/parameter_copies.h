// The parameters of what a rank owns, as its replica had them when a snapshot was opened.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_COPIES_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_COPIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/snapshot/shard_snapshot.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/snapshot/state_snapshots.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/shard_store.h"

namespace optshard {

// The name of their parts.
constexpr char kParameterPart[] = "parameter";

// Unlike state, parameters lie where their trainer may write at any time. They are copied at once,
// or by and by, while the step copies what it is about to write; then Keep says whether the trainer
// has written to them (docs/decisions/0020-parameters-are-copied-in-the-background.md).
// Thread-compatible; what steps copy meanwhile is.
class ParameterCopies {
 public:
  static int64_t BytesFor(const std::shared_ptr<const GenerationShape>& shape, Rank rank);

  // Waits for a device that still copies: the memory is another's afterwards.
  ~ParameterCopies() { AreThere(); }
  ParameterCopies(const ParameterCopies&) = delete;
  ParameterCopies& operator=(const ParameterCopies&) = delete;

  // Errors as SnapshotMemory::Take.
  static absl::StatusOr<std::unique_ptr<ParameterCopies>> Allocate(
      std::shared_ptr<const GenerationShape> shape, Rank rank, SnapshotMemory& memory);

  // A part for each slice of the rank's.
  const std::vector<ShardSnapshot::Part>& parts() const { return parts_; }
  const char* At(int part) const { return copies_.get() + places_[part]; }

  // False where `memory` is not of the shape's parameters, or the trainer writes to it: try again.
  bool CopyNow(const ParameterMemory& memory);

  // Where `memory` is on a device, which copies what is there behind the updates of the version,
  // before the trainer writes to it again. The stream is not that of a trainer in another process:
  // Keep says whether that has written; where it is expected to, this waits for the copy. ABORTED
  // where CopyNow is false, and as DeviceAccess::BeginCopy.
  absl::Status BeginDeviceCopy(const std::shared_ptr<const ParameterMemory>& memory,
                               DeviceAccess& device, uint64_t version);
  // Waits for a device that copies them. False where it cannot.
  bool AreThere() const { return device_copy_ == nullptr || device_copy_->IsThere(); }

  // What `memory`, whose writes are known, has now is copied later: before the store's steps write
  // it, and by Keep. False where it is not of the shape's parameters, or writes are expected.
  bool BeginCopying(const std::shared_ptr<const ParameterMemory>& memory, const ShardStore& store);
  // As ShardSnapshot::KeepParameters and SettleParameters, however they are copied.
  absl::Status Keep();
  void Settle();
  // Ends BeginCopying.
  void StopCopying(const ShardStore& store);

 private:
  ParameterCopies(std::shared_ptr<const GenerationShape> shape, Rank rank);
  bool AreIn(const ParameterMemory& memory) const;
  std::shared_ptr<StateSnapshot> SnapshotOf(const ParameterMemory& memory,
                                            const ShardStore& store) const;

  const std::shared_ptr<const GenerationShape> shape_;
  const Rank rank_;
  std::vector<ShardSnapshot::Part> parts_;
  std::vector<int64_t> places_;  // of parts_, in copies_
  int64_t bytes_ = 0;
  SnapshotMemory::Piece copies_;
  std::shared_ptr<const DeviceCopy> device_copy_;
  // Where they are copied later, or by a device.
  std::shared_ptr<const ParameterMemory> memory_;
  bool may_be_written_ = false;           // by the trainer, before they are copied
  std::shared_ptr<StateSnapshot> later_;  // of memory_; null: a device copies
  uint64_t writes_ = 0;                   // how many there were when it was opened
  // How many calls of the trainer's there were before there were as many still, all of it copied.
  absl::optional<uint64_t> kept_after_;
  bool is_settled_ = false;  // a call has come since then: no write was under way
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_COPIES_H_
