// The optimizer state of the buckets that one rank owns: the slots, the reduced gradients, the
// parameters' step counts.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_STORE_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_STORE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/buffer.h"
#include "common/device_api.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "common/state_options.h"
#include "server/shard/snapshot/state_snapshots.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/shard_ledger.h"
#include "server/shard/state/shard_memory.h"
#include "server/update/group_update.h"
#include "server/update/slot_array.h"
#include "server/update/update_rule.h"

namespace optshard {

// One array a slot and stretch, 64-byte aligned, and one more for the masters. A stretch is an
// unbroken range of a parameter's elements that this rank owns, however buckets cut it: state of a
// whole parameter is in one piece. StateOptions say of which type the arrays are, and which are
// coded; blocks of codes lie on the grid of the whole parameter, of which every stretch begins at a
// multiple of kCodeGrid elements. A slot with a shape of its own belongs to a rule that needs whole
// parameters; it is kept whole, with the bucket in which the parameter begins. The reduced
// gradients lie by bucket and are of the type that sums are computed in.
//
// Written by one thread, the step's; read by any at the same time without making it wait: each
// bucket has a sequence number, odd while it is written, and the number of the step whose values it
// holds. Readers look at both before and after they copy (a seqlock).
class ShardStore {
 public:
  // Where the state of some elements in a row lies.
  struct State {
    // No array where the parameter's shape lacks the slot. One with a shape of its own is only
    // where the parameter begins.
    std::array<SlotArray, kMaxSlots> slots;
    Buffer master;                 // float32; no array where the parameter has none
    int8_t* correction = nullptr;  // null where it has none

    State From(int64_t element) const;
  };

  struct OwnBucket {
    const Bucket* bucket = nullptr;
    std::vector<State> states;  // by span of the bucket
    // Where gradients are averaged to; no array where they are used in place. The gradient of a
    // parameter that several buckets cut goes on in the next one's.
    Buffer reduced_gradient;
  };

  struct Options {
    std::shared_ptr<const GenerationShape> shape;
    Rank rank = 0;
    std::vector<std::vector<Slot>> slots;  // by group
    // How many each parameter has at most, and what they begin as, by group.
    int scalar_slots = 0;
    std::vector<ScalarSlots> initial_scalar_slots;
    bool keep_reduced_gradients = false;
    // In whose memory the slots and the reduced gradients lie; null: in the host's.
    std::shared_ptr<DeviceApi> device;
    // With a device: the slots are in the host's all the same, where its updates need them.
    bool slots_on_host = false;

    const ParameterSpace& space() const { return shape->space(); }
    const StateOptions& state() const { return shape->spec().state; }
    std::shared_ptr<DeviceApi> slot_device() const { return slots_on_host ? nullptr : device; }

    // Sets what is above of slots and scalar slots.
    void TakeSlotsOf(absl::Span<const GroupUpdate> groups);
  };

  // How many bytes a store with these options needs for one admission: for the slots of the
  // parameters that came by it, and for a ledger of all parameters up to it.
  static ShardMemory::Bytes BytesFor(const Options& options, int admission = 0);

  // The size of the reduced gradients, where they are kept.
  static int64_t ReducedGradientBytes(const Options& options);

  // Uses the state in `memory`, which has one entry for each admission of exactly BytesFor bytes
  // (INTERNAL otherwise), or, where that is empty, private memory. The last entry's ledger counts.
  // Memory that no store has begun is zeros; its slots are given their initial values.
  // RESOURCE_EXHAUSTED where there is too little; the device's errors.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Create(const Options& options,
                                                            std::vector<ShardMemory> memory = {});

  // The store of the next generation, whose space has one admission more: between steps, on the
  // step's thread. It has what this one keeps, in place, and initial values in `added`, which is
  // zeros, of BytesFor that admission; private memory without it. This one is as it was. When the
  // other's ledger begins, that is the rank's state: call Retire here first.
  //   INTERNAL            the next plan moves what is kept here; memory of another size
  //   RESOURCE_EXHAUSTED  there is too little memory
  absl::StatusOr<std::unique_ptr<ShardStore>> Grow(
      const Options& next, absl::optional<ShardMemory> added = absl::nullopt) const;

  // A store of the same elements, with initial values in private memory of the host, which is
  // written in place of this one (Take). RESOURCE_EXHAUSTED.
  absl::StatusOr<std::unique_ptr<ShardStore>> CreateAlike() const;
  int64_t BytesAlike() const;  // what it allocates

  // From now on no TryRead here succeeds, for another store writes to the same memory. Snapshots
  // lose what they have not copied.
  void Retire() {
    ledger_->EndReads();
    snapshots_->EndAll();
  }

  // Around the updates that the step's thread enqueues on a device; null: the state is on the host.
  const std::shared_ptr<DeviceAccess>& device_access() const { return device_access_; }

  const std::vector<OwnBucket>& own_buckets() const { return own_; }
  int64_t state_bytes() const { return state_bytes_; }  // of the slots, padding left out

  // --- The step's thread.

  // Around the update of the own_buckets()[own].
  void BeginWrite(int own);
  // Instead of BeginWrite, and calls `write` to update it, as StateSnapshots::Write.
  void WriteInPieces(int own, absl::FunctionRef<std::vector<MemoryRange>()> announce,
                     absl::FunctionRef<void(const BlockPieces*)> write);
  void EndWrite(int own, StepNumber step);
  // Instead of both, where the step leaves the bucket as it is.
  void MarkUnchanged(int own, StepNumber step);

  // Counts the step for every parameter that `updated` holds true for, and takes its scalar slots.
  // `after(parameter)` gives those; null: this rank does not own the parameter.
  void CountStep(StepNumber step, const std::vector<bool>& updated,
                 absl::FunctionRef<const ScalarSlots*(int parameter)> after);

  // Between steps: replaces elements of a slot that are owned here, rounded to what it can keep.
  // The range begins a multiple of kCodeGrid elements after the beginning of what is owned in a
  // row, and has a multiple of kCodeGrid elements or reaches to the end of it. The step whose
  // values they are stays as it is. Cannot fail on the host. On a device, as DeviceAccess::Write;
  // it waits there for a minute at most.
  absl::Status Write(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values);
  // Likewise on the host, as they are kept: in the dtype of a slot that has no codes.
  void WriteBytes(int parameter, int slot, int64_t offset_elements, int64_t elements,
                  const char* values);
  // Where WriteBytes would write them, in a store that nobody reads yet. Null where they do not lie
  // in a row.
  char* BytesAt(int parameter, int slot, int64_t offset_elements, int64_t elements) const;
  // Likewise the parameter's step count and scalar slots.
  void WriteCount(int parameter, StepNumber count, const ScalarSlots& scalar_slots);

  // Between steps: the slots, step counts and scalar slots become those of `alike` (CreateAlike),
  // which is of no use any more. The step whose values they are stays as it is. Cannot fail on the
  // host. On a device, as DeviceAccess::Write; after an error the state is that of no step.
  absl::Status Take(ShardStore& alike, absl::Time deadline);
  // The state is that of `step` now: between steps, after all of it was replaced.
  void SetStep(StepNumber step);

  // What a process that takes over this memory will find (ShardLedger::SetProgress).
  ShardLedger& ledger() { return *ledger_; }
  const ShardLedger& ledger() const { return *ledger_; }

  // --- Any thread.

  // How often the parameter was updated (here: a parameter without slices here is not counted).
  StepNumber step_count(int parameter) const {
    return ledger_->step_count(parameter).load(std::memory_order_relaxed);
  }

  // The parameter's scalar slots after its last update.
  ScalarSlots scalar_slots(int parameter) const;

  // Whether [offset, offset + elements) of the parameter is all in own buckets. Any two numbers
  // that are not negative may be asked for.
  bool Owns(int parameter, int64_t offset_elements, int64_t elements) const;

  // For TryRead and Write: the masters, where the parameter has them. Elements of a slot with a
  // shape of its own are counted in that shape.
  static constexpr int kMaster = -1;
  static constexpr int kCorrection = -2;  // likewise; whole numbers

  // Copies elements of a slot that are owned here; each type's values are exact in double. Returns
  // the step whose values they are, all of one step, or nothing where a step is just writing them
  // or has written only some: try again. On a device it waits for the step that is under way there,
  // for ten seconds at most (DEADLINE_EXCEEDED), and has the errors of DeviceAccess::TryRead; there
  // are no others.
  absl::StatusOr<absl::optional<StepNumber>> TryRead(int parameter, int slot,
                                                     int64_t offset_elements,
                                                     absl::Span<double> out) const;

  // Likewise for the parameter's step count and its scalar slots.
  struct CountAtStep {
    StepNumber count = 0;
    ScalarSlots scalar_slots{};
    StepNumber step = 0;
  };
  absl::optional<CountAtStep> TryReadStepCount(int parameter) const;

  // --- Snapshots; any thread. Their blocks are the own buckets.

  // Where the values of some elements of a slot lie.
  struct StoredPart {
    int parameter = 0;
    int slot = 0;  // as for TryRead
    int64_t offset_elements = 0;
    int64_t elements = 0;
    int own = 0;
    int range = 0;    // of that block; scales are the next one
    SlotArray array;  // no array of corrections
  };
  std::vector<StoredPart> StoredParts() const;

  StateSnapshots& snapshots() const { return *snapshots_; }

  // What is not in the blocks, of the step whose state a snapshot has.
  struct SnapshotCounts {
    StepNumber step = 0;
    std::vector<StepNumber> step_counts;  // by parameter
    std::vector<ScalarSlots> scalar_slots;
  };
  // Opens the snapshot at the last finished step; nothing where a step is just being applied: try
  // again.
  absl::optional<SnapshotCounts> TryOpen(const std::shared_ptr<StateSnapshot>& snapshot) const;

  // Likewise on a device, where that step may be under way: opening is StateSnapshots::OpenOnDevice
  // with the version.
  struct DeviceMoment {
    SnapshotCounts counts;
    uint64_t version = 0;  // of device_access()
  };
  absl::optional<DeviceMoment> MomentOnDevice() const;

 private:
  // Where a stretch of a parameter lies.
  struct Piece {
    int own = 0;
    int span = 0;  // of that bucket
    int64_t parameter_offset = 0;
    int64_t elements = 0;
  };
  explicit ShardStore(Options options) : options_(std::move(options)) {}

  // Parameters of the admissions from `first_new` on get initial values. Of those before it, the
  // memory and the reduced gradients are there.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Over(
      const Options& options, std::vector<ShardMemory> memory,
      std::vector<std::shared_ptr<void>> reduced_gradients, int first_new);
  static absl::StatusOr<ShardMemory> PrivateMemory(const Options& options, int admission);
  absl::Status PlaceSlots(int first_new);
  void PlaceBlocks();
  absl::Status PlaceReducedGradients();
  absl::optional<SnapshotCounts> TryReadCounts() const;
  static SlotArray ArrayOf(const State& state, int slot);
  // `write(state, within, given, count)` for what the range has in each piece, from element
  // `within` of it and `given` of the range on.
  void WritePieces(
      int parameter, int slot, int64_t offset_elements, int64_t elements,
      absl::FunctionRef<void(const State& state, int64_t within, int64_t given, int64_t count)>
          write);
  // Where the slot's values lie that begin at the offset: the first piece reaches beyond it.
  absl::Span<const Piece> PiecesFrom(int parameter, int slot, int64_t offset_elements) const;
  // Likewise elements of one piece that is on the device, from element `within` of it on.
  absl::StatusOr<bool> TryReadPiece(uint64_t version, const Piece& piece, int slot, int64_t within,
                                    absl::Time deadline, absl::Span<double> out) const;
  absl::StatusOr<bool> TryReadCorrections(uint64_t version, const int8_t* corrections,
                                          absl::Time deadline, absl::Span<double> out) const;
  absl::StatusOr<absl::optional<StepNumber>> TryReadOnDevice(int parameter, int slot,
                                                             int64_t offset_elements,
                                                             absl::Span<double> out) const;
  absl::Status WriteOnDevice(int parameter, int slot, int64_t offset_elements,
                             absl::Span<const double> values);

  const Options options_;
  std::vector<ShardMemory> memory_;  // by admission
  absl::optional<ShardLedger> ledger_;
  std::vector<std::shared_ptr<void>> reduced_gradients_;  // by admission
  std::shared_ptr<DeviceAccess> device_access_;           // of all generations
  std::vector<OwnBucket> own_;
  std::vector<std::vector<Piece>> pieces_;  // by parameter, ordered by offset
  // By parameter and slot: those with a shape of their own, in its elements.
  std::map<std::pair<int, int>, Piece> whole_slots_;
  std::unique_ptr<StateSnapshots> snapshots_;
  int64_t state_bytes_ = 0;
  int parameter_count_ = 0;
  int scalar_slot_count_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_STORE_H_
