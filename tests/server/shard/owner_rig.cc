#include "tests/server/shard/owner_rig.h"

#include <memory>
#include <thread>
#include <utility>

#include "common/gradient_mode.h"
#include "common/group_rule.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/server/shard/engine/fake_device_executor.h"

namespace optshard::testing {
namespace {

// Tells when its rank was killed by the hub, as soon as the rank's own call finds out, and when it
// was aborted.
class MortalPlane final : public DataPlane {
 public:
  MortalPlane(std::unique_ptr<DataPlane> plane, std::function<void()> died,
              std::function<void()> aborted)
      : plane_(std::move(plane)), died_(std::move(died)), aborted_(std::move(aborted)) {}

  Rank rank() const override { return plane_->rank(); }
  int world_size() const override { return plane_->world_size(); }
  const PeerReplicas* peer_replicas() const override { return plane_->peer_replicas(); }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag,
                                                 const ExecutionContext& context,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override {
    return Watch(plane_->Reduce(tag, context, reduction, dtype, contribution, result, elements));
  }
  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag,
                                                  const ExecutionContext& context, Rank owner,
                                                  absl::Span<const Rank> members, void* data,
                                                  size_t bytes) override {
    return Watch(plane_->Publish(tag, context, owner, members, data, bytes));
  }
  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag,
                                                    const ExecutionContext& context,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override {
    return Watch(plane_->AllGather(tag, context, contribution, gathered, bytes_per_rank));
  }
  absl::Status status() override { return plane_->status(); }
  void Abort(const absl::Status& reason) override {
    plane_->Abort(reason);
    aborted_();
  }
  absl::Status Close(absl::Time deadline) override { return plane_->Close(deadline); }

 private:
  absl::StatusOr<std::unique_ptr<Ticket>> Watch(absl::StatusOr<std::unique_ptr<Ticket>> started) {
    if (absl::IsCancelled(started.status())) died_();
    return started;
  }

  const std::unique_ptr<DataPlane> plane_;
  const std::function<void()> died_;
  const std::function<void()> aborted_;
};

}  // namespace

OwnerRig::Options OwnerRig::MixedOptions(int world_size) {
  Options options;
  options.world_size = world_size;
  options.owner.spec.space = MixedSpace();
  options.owner.spec.rules = {{"adam"}, {"adam"}};
  options.owner.spec.buckets = {2048, 512};
  options.owner.join_timeout = absl::Seconds(20);
  return options;
}

OwnerRig::OwnerRig(Options options) : options_(std::move(options)) {
  Coordinator::Options coordinator = LocalCoordinator::QuickOptions(options_.world_size);
  coordinator.group.liveness.lease = options_.lease;
  coordinator_ = std::make_unique<LocalCoordinator>(coordinator);
  FakeHub::Options hub;
  hub.world_size = options_.world_size;
  hub.mode = options_.mode;
  hub_ = std::make_unique<FakeHub>(hub);
  if (options_.on_devices) {
    on_devices_ = std::make_unique<NcclGroup>(options_.world_size);
    std::vector<GroupSpec> groups = space().groups();
    for (GroupSpec& group : groups) {
      for (ParameterSpec& parameter : group.parameters) parameter.device = "cuda";
    }
    options_.owner.spec.space = ParameterSpace(std::move(groups));
  }
  streams_.resize(options_.world_size);
  owners_.resize(options_.world_size);
  given_.resize(options_.world_size);
  for (Rank r = 0; r < options_.world_size; ++r) {
    const Placement placement = options_.reachable ? Placement::kReachable
                                : r % 2 == 0       ? Placement::kFlatRegions
                                                   : Placement::kScattered;
    replicas_.push_back(std::make_unique<TestReplica>(options_.owner.spec.space, placement));
    for (int p = 0; p < options_.owner.spec.space.parameter_count(); ++p) {
      // Rank 0's go to all.
      replicas_[r]->SetParameter(
          p, OrderSensitiveValues(options_.owner.spec.space.parameter(p), 17 * r + p));
    }
    ShardOwner::Options owner = options_.owner;
    owner.rank = r;
    owner.spec.world_size = options_.world_size;
    owner.node = "node";
    owner.coordinator = coordinator_.get();
    owner.plane_factory =
        [this](const PlaneRequest& request) -> absl::StatusOr<std::unique_ptr<DataPlane>> {
      const Rank rank = request.rank;
      absl::StatusOr<std::unique_ptr<DataPlane>> plane = MakePlane(request);
      if (!plane.ok()) return plane;
      plane = std::make_unique<MortalPlane>(
          *std::move(plane), [this, rank] { coordinator_->Kill(rank); },
          [this, rank] {
            absl::MutexLock lock(&mutex_);
            aborted_.insert(rank);
          });
      return plane;
    };
    if (options_.on_devices) {
      owner.device = *on_devices_->OptionsOf(r).device;
      owner.state_on_host = options_.state_on_host;
      if (!owner.state_on_host) {
        owner.make_executor = MakeFakeDeviceExecutor(on_devices_->devices(), owner.device, nullptr);
      }
      streams_[r] = *owner.device->NewStream();
    }
    owner_options_.push_back(std::move(owner));
  }
  if (!options_.reachable) return;
  PeerReplicas reached;
  for (const auto& replica : replicas_) reached.regions.push_back(replica->regions());
  hub_->ShareReplicas(std::move(reached));
}

OwnerRig::~OwnerRig() {
  hub().ReleaseHung();
  owners_.clear();
}

absl::StatusOr<std::unique_ptr<DataPlane>> OwnerRig::MakePlane(const PlaneRequest& request) {
  if (!options_.on_devices) return hub_->MakePlane(request.rank);
  NcclPlaneOptions plane = on_devices_->OptionsOf(request.rank);
  static_cast<PlaneRequest&>(plane) = request;
  plane.device = owner_options_[request.rank].device;
  return on_devices_->Make(plane);
}

void OwnerRig::KillAt(Rank rank, int64_t operation) { hub().KillAt(rank, operation); }

void OwnerRig::Kill(Rank rank) {
  hub().Kill(rank);
  coordinator_->Kill(rank);
}

bool OwnerRig::AwaitAborted(Rank rank) {
  absl::MutexLock lock(&mutex_);
  const auto aborted = [&] {
    mutex_.AssertReaderHeld();
    return aborted_.count(rank) > 0;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&aborted), options_.timeout);
}

void OwnerRig::OnEveryRank(const std::function<void(Rank)>& work) {
  std::vector<std::thread> threads;
  for (Rank r = 0; r < options_.world_size; ++r) threads.emplace_back([&work, r] { work(r); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<absl::Status> OwnerRig::Start() {
  std::vector<absl::Status> results(options_.world_size);
  OnEveryRank([&](Rank r) {
    absl::StatusOr<std::unique_ptr<ShardOwner>> owner = ShardOwner::Start(owner_options_[r]);
    results[r] = owner.status();
    if (!owner.ok()) return;
    owners_[r] = std::move(*owner);
    results[r] = owners_[r]->SyncParameters(replicas_[r]->tensors(), replicas_[r]->regions(),
                                            options_.timeout, streams_[r].get());
  });
  return results;
}

void OwnerRig::GiveGradients(uint64_t seed) {
  for (Rank r = 0; r < options_.world_size; ++r) {
    const Rank source = options_.owner.spec.gradient_mode == GradientMode::kAveraged ? 0 : r;
    for (int p = 0; p < space().parameter_count(); ++p) {
      replicas_[r]->SetGradient(
          p, OrderSensitiveValues(space().parameter(p), (seed * 100 + source) * 100 + p));
    }
  }
}

void OwnerRig::TellParameters(const std::shared_ptr<const TrainerWrites>& writes) {
  for (Rank r = 0; r < options_.world_size; ++r) {
    auto memory = std::make_shared<ParameterMemory>();
    for (const ReplicaTensor& tensor : replicas_[r]->tensors()) {
      memory->values.emplace_back(tensor.parameter);
    }
    memory->writes = writes;
    memory->stream = streams_[r].get();
    owners_[r]->KeepParameters(memory);
  }
}

StepInput OwnerRig::InputOf(Rank rank) {
  given_[rank].clear();
  for (const GroupRule& rule : owner_options_[rank].spec.rules) {
    given_[rank].push_back(rule.hyperparameters);
  }
  StepInput input;
  input.replica = replicas_[rank]->tensors();
  input.regions = replicas_[rank]->regions();
  input.hyperparameters = given_[rank];
  input.timeout = options_.timeout;
  input.stream = streams_[rank].get();
  return input;
}

std::vector<absl::StatusOr<StepInfo>> OwnerRig::Step() {
  std::vector<absl::StatusOr<StepInfo>> results(options_.world_size);
  OnEveryRank([&](Rank r) { results[r] = owners_[r]->Step(InputOf(r)); });
  return results;
}

std::vector<absl::Status> OwnerRig::Stop() {
  std::vector<absl::Status> results(options_.world_size);
  OnEveryRank([&](Rank r) { results[r] = owners_[r]->Stop(options_.timeout); });
  return results;
}

}  // namespace optshard::testing
