#include "server/shard/owner_generation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/snapshot/store_snapshot.h"

namespace optshard {
namespace {

// For one that is under way on a device.
constexpr absl::Duration kLongestStep = absl::Minutes(10);

}  // namespace

absl::StatusOr<std::unique_ptr<OwnerGeneration>> OwnerGeneration::First(
    Options options, std::vector<ShardMemory> memory, const StepProgress& progress,
    Replacing replacing, ParameterValues values) {
  std::unique_ptr<OwnerGeneration> first(new OwnerGeneration(std::move(options)));
  absl::StatusOr<std::unique_ptr<ShardStore>> store =
      ShardStore::Create(first->StoreOptions(), std::move(memory));
  if (!store.ok()) return store.status();
  (*store)->ledger().Begin(first->shape()->generation(), progress, replacing);
  if (first->options_.device != nullptr && first->options_.state_on_host) {
    absl::StatusOr<std::unique_ptr<DeviceAccess>> access =
        DeviceAccess::Create(first->options_.device);
    if (!access.ok()) return access.status();
    first->replica_access_ = *std::move(access);
  }
  absl::Status made = first->MakeEngine(*std::move(store), values, nullptr);
  if (!made.ok()) return made;
  first->WatchPlane();
  return first;
}

absl::StatusOr<std::unique_ptr<OwnerGeneration>> OwnerGeneration::After(
    const OwnerGeneration& running, Options options, absl::optional<ShardMemory> added) {
  const StepEngine::Result done = running.engine().Synchronize(kLongestStep);
  if (!done.status.ok()) return done.status;
  std::unique_ptr<OwnerGeneration> next(new OwnerGeneration(std::move(options)));
  absl::StatusOr<std::unique_ptr<ShardStore>> store =
      running.store_->Grow(next->StoreOptions(), std::move(added));
  if (!store.ok()) return store.status();
  next->replica_access_ = running.replica_access_;
  absl::Status made =
      next->MakeEngine(*std::move(store), ParameterValues::kAddedAreMissing, running.engine_.get());
  if (!made.ok()) return made;
  return next;
}

OwnerGeneration::~OwnerGeneration() {
  if (store_ == nullptr) return;
  snapshots_->End(absl::AbortedError(
      absl::StrCat("rank ", options_.rank, " leaves the generation; ask again")));
  store_->snapshots().EndAll();
}

void OwnerGeneration::Begin(OwnerGeneration& former) {
  former.snapshots_->End(
      absl::AbortedError(absl::StrCat("rank ", options_.rank, " has got param groups; ask again")));
  const StepProgress progress = former.store_->ledger().progress();
  const Replacing replacing = former.store_->ledger().replacing();
  former.store_->Retire();
  WatchPlane();
  store_->ledger().Begin(options_.shape->generation(), progress, replacing);
}

const std::shared_ptr<DeviceAccess>& OwnerGeneration::device_access() const {
  return options_.state_on_host ? replica_access_ : store_->device_access();
}

// For readers of what the last step leaves on a device: it is nothing once the plane is broken.
void OwnerGeneration::WatchPlane() const {
  if (device_access() == nullptr || options_.plane == nullptr) return;
  device_access()->ExpectUpdatesWhile(
      [plane = std::weak_ptr<DataPlane>(options_.plane)]() -> absl::Status {
        const std::shared_ptr<DataPlane> there = plane.lock();
        return there != nullptr ? there->status()
                                : absl::UnavailableError("the shard owner has gone");
      });
}

ShardStore::Options OwnerGeneration::StoreOptions() const {
  const OptimizerSpec& spec = options_.shape->spec();
  const bool in_one_pass = options_.plane != nullptr && options_.plane->peer_replicas() != nullptr;
  ShardStore::Options store;
  store.shape = options_.shape;
  store.rank = options_.rank;
  store.TakeSlotsOf(*options_.groups);
  store.device = options_.device;
  store.slots_on_host = options_.state_on_host;
  store.keep_reduced_gradients =
      spec.gradient_mode == GradientMode::kReduce && spec.world_size > 1 && !in_one_pass;
  return store;
}

absl::Status OwnerGeneration::MakeEngine(std::shared_ptr<ShardStore> store, ParameterValues values,
                                         const StepEngine* before) {
  store_ = std::move(store);
  state_ = std::make_unique<ShardState>(ShardState::Options{
      options_.shape, options_.groups, options_.rank, store_.get(), options_.budget});
  absl::Status snapshots = MakeSnapshots();
  if (!snapshots.ok()) return snapshots;
  StepEngine::Options engine;
  engine.rank = options_.rank;
  engine.shape = options_.shape;
  engine.groups = options_.groups;
  engine.driver = options_.driver;
  engine.threads = options_.threads;
  engine.make_executor = options_.make_executor;
  engine.plane = options_.plane.get();
  engine.device = options_.device.get();
  engine.device_access = device_access().get();
  engine.store = store_.get();
  engine.timeline = options_.timeline;
  engine.clock = options_.clock;
  engine.window = options_.window;
  engine.staging_buffers = options_.staging_buffers;
  engine.incarnation = options_.incarnation;
  engine.values = values;
  engine.before = before;
  engine.last_hyperparameters = options_.last_hyperparameters;
  engine.snapshots = snapshots_.get();
  absl::StatusOr<std::unique_ptr<StepEngine>> made = StepEngine::Create(engine);
  if (!made.ok()) return made.status();
  engine_ = *std::move(made);
  return absl::OkStatus();
}

absl::Status OwnerGeneration::MakeSnapshots() {
  snapshot_memory_ = options_.snapshot_memory;
  if (snapshot_memory_ == nullptr) {
    SnapshotMemory::Options memory;
    memory.bytes =
        SnapshotMemory::RoundedUp(store_->snapshots().bytes()) +
        SnapshotMemory::RoundedUp(ParameterCopies::BytesFor(options_.shape, options_.rank));
    memory.rank = options_.rank;
    memory.budget = options_.budget;
    memory.device = options_.device;
    absl::StatusOr<std::shared_ptr<SnapshotMemory>> made = SnapshotMemory::Create(memory);
    if (!made.ok()) return made.status();
    snapshot_memory_ = *std::move(made);
  }
  StoreSnapshotOptions snapshot;
  snapshot.shape = options_.shape;
  snapshot.groups = options_.groups;
  snapshot.rank = options_.rank;
  snapshot.store = store_;
  snapshot.device_access = device_access();
  snapshot.parameters = options_.parameters;
  snapshot.blob = options_.blob;
  snapshot.memory = snapshot_memory_;
  AgreedSnapshots::Options snapshots;
  snapshots.rank = options_.rank;
  snapshots.prepare = [snapshot](const SnapshotContents& contents) {
    StoreSnapshotOptions wanted = snapshot;
    wanted.contents = contents;
    return PrepareStoreSnapshot(wanted);
  };
  snapshots_ = std::make_shared<AgreedSnapshots>(std::move(snapshots));
  return absl::OkStatus();
}

}  // namespace optshard
