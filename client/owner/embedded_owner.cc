#include "client/owner/embedded_owner.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "client/owner/client_seams.h"
#include "client/owner/coordinator_host.h"
#include "client/owner/inspection_host.h"
#include "client/owner/opened_device.h"
#include "common/attach/attachment.h"
#include "common/clock.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/log.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/request_id.h"
#include "common/rpc/awaited_address.h"
#include "common/rpc/network_choice.h"
#include "common/step_info.h"
#include "server/device/owner_device.h"
#include "server/shard/engine/load_input.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/host_plane_factory.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/trainer_blob.h"

namespace optshard {
namespace {

// By how many admissions they have. They live as long as the planes that use them.
using SegmentsOfRank = std::map<int, std::weak_ptr<const ReplicaSegments>>;

// The segments of a generation go on from those of the one before. Where that has none in use,
// because a rank had none, this one has none either.
absl::StatusOr<std::shared_ptr<const ReplicaSegments>> GrowSegments(SegmentsOfRank& made,
                                                                    const PlaneRequest& request) {
  const int admissions = request.layout->admission_count();
  const std::shared_ptr<const ReplicaSegments> before = made[admissions - 1].lock();
  if (before == nullptr) return nullptr;
  return ReplicaSegments::Grow(*before, *request.layout, request.rank);
}

// A flat replica lies in segments; where there is one copy of the parameters, rank 0 has it. A rank
// that has no memory for segments does without, unless it was told to have them; but it does not
// leave those that it has.
ReplicaOfRank ReplicaOf(const ShardedOptimizerOptions& options) {
  if (options.parameters_as_bucket_view == BucketView::kOff) return nullptr;
  const auto parts = options.share_parameters && options.rank != 0
                         ? ReplicaSegments::Parts::kGradients
                         : ReplicaSegments::Parts::kParametersAndGradients;
  const bool required =
      options.parameters_as_bucket_view == BucketView::kOn || options.share_parameters;
  return
      [parts, required, job = options.job, made = std::make_shared<SegmentsOfRank>()](
          const PlaneRequest& request) -> absl::StatusOr<std::shared_ptr<const ReplicaSegments>> {
        const int admissions = request.layout->admission_count();
        absl::StatusOr<std::shared_ptr<const ReplicaSegments>> segments =
            admissions > 1 ? GrowSegments(*made, request)
                           : ReplicaSegments::Create(*request.layout, request.rank, parts);
        if (segments.ok()) (*made)[admissions] = *segments;
        const bool may_do_without = !required && admissions == 1;
        if (!may_do_without || !absl::IsResourceExhausted(segments.status())) return segments;
        Log(LogLevel::kWarning, {"client", job, request.rank},
            "steps send messages, which is slower than one pass over shared memory: %s",
            segments.status().ToString());
        return nullptr;
      };
}

class EmbeddedOwner : public OwnerLink {
 public:
  EmbeddedOwner(const ShardedOptimizerOptions& options, const TrainerDevice& device)
      : options_(options), trainer_device_(device) {}

  ~EmbeddedOwner() override { EndInspection(); }

  absl::Status Start(ShardOwner::Options owner) {
    if (absl::Status status = OpenDevice(owner); !status.ok()) return status;
    if (absl::Status status = Connect(owner); !status.ok()) return status;
    owner.owner_address = owner_address_;
    owner.blob = [this](StepNumber finished) { return blob_.After(finished); };
    coordinator_ = owner.coordinator;
    absl::StatusOr<std::unique_ptr<ShardOwner>> started = ShardOwner::Start(std::move(owner));
    if (!started.ok()) return started.status();
    owner_ = *std::move(started);
    BeginInspection();
    return absl::OkStatus();
  }

  absl::Span<const ReplicaRegion> replica() const override { return owner_->shared_replica(); }
  std::shared_ptr<const void> replica_memory() const override {
    return owner_->shared_replica_memory();
  }
  // The state ends with the process.
  bool resumes() const override { return false; }
  StepNumber finished_step() const override { return owner_->progress().finished; }

  absl::Status SyncParameters(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions,
                              absl::Duration timeout) override {
    return owner_->SyncParameters(replica, regions, timeout, Stream());
  }

  void KeepParameters(const std::shared_ptr<const ParameterMemory>& memory) override {
    void* const stream = Stream();
    if (memory == parameters_ && stream == stream_of_parameters_) return;
    parameters_ = memory;
    stream_of_parameters_ = stream;
    if (!trainer_device_.is_cpu()) {
      auto on_device = std::make_shared<ParameterMemory>(*memory);
      on_device->stream = stream;
      return owner_->KeepParameters(std::move(on_device));
    }
    // What another rank writes to a copy that ranks share is not known here.
    if (!options_.copy_parameters_at_once && !options_.share_parameters) {
      return owner_->KeepParameters(memory);
    }
    auto without_writes = std::make_shared<ParameterMemory>(*memory);
    without_writes->writes = nullptr;
    owner_->KeepParameters(std::move(without_writes));
  }

  absl::Status AddGroups(const OptimizerSpec& spec,
                         const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                         const absl::Status& prepared, absl::Duration timeout) override {
    return owner_->AddGroups(spec, trainer_updates, prepared, timeout);
  }

  // No answer can be missed.
  absl::Status GiveAddedValues(absl::Span<const ReplicaTensor> replica,
                               absl::Span<const ReplicaRegion> regions,
                               absl::Duration timeout) override {
    return SyncParameters(replica, regions, timeout);
  }

  absl::Status VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions,
                              absl::Duration timeout) override {
    return owner_->VerifyReplicas(replica, regions, timeout, Stream());
  }

  absl::StatusOr<StepInfo> Step(const StepInput& input) override {
    blob_.Offer(owner_->progress().finished + 1, next_blob_);
    StepInput with_blob = input;
    with_blob.stream = Stream();
    with_blob.on_skip = [this](StepNumber finished) { blob_.MoveOffer(finished); };
    absl::StatusOr<StepInfo> info = owner_->Step(with_blob);
    if (info.ok()) next_blob_.reset();
    return info;
  }

  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) override {
    return owner_->ShareBytes(share, timeout);
  }

  absl::StatusOr<StateAccess*> state(absl::Duration) override { return owner_->state(); }

  absl::Status FinishLoading(const LoadedStep& loaded, absl::Span<const ReplicaTensor> replica,
                             absl::Span<const ReplicaRegion> regions,
                             absl::Duration timeout) override {
    absl::Status size = CheckBlobSize(options_.rank, loaded.blob);
    if (!size.ok()) return size;
    LoadInput load;
    load.step = loaded.step;
    load.hyperparameters = loaded.hyperparameters;
    load.replica = replica;
    load.regions = regions;
    load.timeout = timeout;
    load.stream = Stream();
    // Before the end: a snapshot may follow at once.
    load.begun = [&] { blob_.Replace(loaded.step, loaded.blob); };
    absl::Status finished = owner_->FinishLoading(load);
    if (finished.ok()) next_blob_.reset();
    return finished;
  }

  absl::Status ReplaceState(absl::Duration timeout) override {
    return owner_->ReplaceState(timeout);
  }

  bool MakeRoom() override {
    // It may have been told of a loss that no call has met yet: any call fails with it then.
    if (!owner_->lost().ok()) owner_->VerifyReplicas({}, {}, absl::ZeroDuration()).IgnoreError();
    if (owner_->failure().ok()) return false;
    EndInspection();
    return true;
  }

  absl::Status Stop(absl::Duration timeout) override {
    absl::Status stopped = owner_->Stop(timeout);
    EndInspection();
    // Where other optimizers of this process use the coordinator too, the last one waits.
    if (coordinator_host_.use_count() == 1 && !coordinator_host_->WaitUntilDone(timeout)) {
      Log(LogLevel::kWarning, {"client", options_.job, options_.rank},
          "this process ends the coordinator although ranks have not left the job");
    }
    return stopped;
  }

  absl::Status SetBlob(absl::string_view blob) override {
    absl::Status size = CheckBlobSize(options_.rank, blob);
    if (size.ok()) next_blob_ = std::string(blob);
    return size;
  }
  // A predecessor's state has ended with its process.
  const std::string& blob() const override { return no_blob_; }

  absl::Status failure() const override { return owner_->failure(); }
  int64_t state_bytes() const override { return owner_->view().Describe().state_bytes; }
  const ShardView* view() const override { return &owner_->view(); }
  const std::string& coordinator_address() const override { return coordinator_address_; }
  const std::string& owner_address() const override { return owner_address_; }
  absl::StatusOr<std::vector<std::string>> owner_addresses(absl::Duration timeout) const override {
    return coordinator_->GetOwners(options_.optimizer, Clock::Monotonic().Now() + timeout);
  }

 private:
  // Another optimizer of this process may have the same name, in another job. It can train all the
  // same.
  void BeginInspection() {
    if (views_ == nullptr) return;
    const absl::Status shown = views_->Register(options_.optimizer, options_.rank, &owner_->view());
    inspected_ = shown.ok();
    if (inspected_) return;
    Log(LogLevel::kWarning, {"client", options_.job, options_.rank}, "cannot be inspected: %s",
        shown.ToString());
  }

  void EndInspection() {
    if (!std::exchange(inspected_, false)) return;
    views_->Unregister(options_.optimizer, options_.rank);
  }

  // The trainer's, of its device.
  void* Stream() const {
    return trainer_device_.is_cpu() ? nullptr : trainer_device_.current_stream();
  }

  absl::Status OpenDevice(ShardOwner::Options& owner) {
    if (trainer_device_.is_cpu()) return absl::OkStatus();
    if (options_.share_parameters) {
      return absl::InvalidArgumentError(
          absl::StrCat("share_parameters is true, and the parameters are on ", trainer_device_.name,
                       ": ranks share one copy in memory of a host only; leave it false"));
    }
    absl::StatusOr<OwnerDevice> opened = OpenDeviceOf(trainer_device_, options_.rank);
    if (!opened.ok()) return opened.status();
    owner.device = opened->device;
    owner.state_on_host = options_.state_device == "cpu";
    if (!owner.state_on_host) owner.make_executor = opened->make_executor;
    make_device_plane_ = opened->make_plane;
    return absl::OkStatus();
  }

  // Null where the replica's memory is not for others.
  ReplicaOfRank Replica() const { return trainer_device_.is_cpu() ? ReplicaOf(options_) : nullptr; }

  // Everything that an owner needs around it.
  absl::Status Connect(ShardOwner::Options& owner) {
    if (const ClientSeams* seams = ScopedClientSeams::Current(); seams != nullptr) {
      owner.coordinator = seams->coordinator;
      coordinator_address_ = seams->coordinator_address;
      views_ = seams->views;
      owner_address_ = seams->owner_address;
      owner.plane_factory = [plane = seams->plane, replica = Replica()](
                                const PlaneRequest& request) { return plane(request, replica); };
      return absl::OkStatus();
    }
    absl::StatusOr<std::string> address = CoordinatorAddress();
    if (!address.ok()) return address.status();
    coordinator_address_ = *address;
    absl::StatusOr<std::string> network = AwaitNetwork(*address);
    if (!network.ok()) return network.status();
    const std::string listen =
        options_.owner_listen.empty() ? ListenTowards(*network) : options_.owner_listen;
    absl::StatusOr<std::shared_ptr<InspectionHost>> inspection = InspectionHost::Get(listen);
    if (!inspection.ok()) return inspection.status();
    inspection_ = *std::move(inspection);
    views_ = &inspection_->views();
    views_->AddRank(options_.rank);
    owner_address_ = ReachableAddress(listen, inspection_->port(), *network, HostAddresses());
    absl::StatusOr<std::unique_ptr<CoordinatorClient>> client = MakeCoordinatorClient(*address);
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    owner.coordinator = client_.get();
    absl::StatusOr<HostPlaneKind> kind = ParseHostPlaneKind(options_.plane);
    if (!kind.ok()) return kind.status();
    owner.plane_factory = MakeHostPlaneFactory(
        *kind, options_.interface.empty() ? *network : options_.interface, Replica());
    if (make_device_plane_ != nullptr) {
      owner.plane_factory = BetweenDevices(make_device_plane_, std::move(owner.plane_factory));
    }
    return absl::OkStatus();
  }

  // In a cluster the coordinator's name may appear after its trainers.
  absl::StatusOr<std::string> AwaitNetwork(const std::string& coordinator) const {
    AddressWait wait;
    wait.timeout = options_.join_timeout;
    wait.sleep = [](absl::Duration pause) {
      absl::SleepFor(pause);
      return true;
    };
    wait.say = [this](const std::string& message) {
      Log(LogLevel::kWarning, {"client", options_.job, options_.rank}, "%s", message);
    };
    return AwaitAddressTowards(coordinator, wait);
  }

  absl::StatusOr<std::string> CoordinatorAddress() {
    if (!options_.coordinator.empty()) return options_.coordinator;
    if (options_.embedded_coordinator.empty() && options_.world_size > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", options_.rank, " of ", options_.world_size,
          " does not know where the coordinator is: give coordinator=HOST:PORT of a running "
          "optshard-coordinator, or on all ranks the same embedded_coordinator=HOST:PORT, where "
          "rank 0 runs one"));
    }
    if (options_.rank != 0) return options_.embedded_coordinator;
    CoordinatorHost::Options host;
    host.listen =
        options_.embedded_coordinator.empty() ? "127.0.0.1:0" : options_.embedded_coordinator;
    host.job = options_.job;
    host.world_size = options_.world_size;
    // The coordinator's error comes before the members' own deadlines, so that all ranks are told
    // the same: which ranks are missing.
    host.join_timeout = 0.9 * options_.join_timeout;
    absl::StatusOr<std::shared_ptr<CoordinatorHost>> started = CoordinatorHost::Get(host);
    if (!started.ok()) return started.status();
    coordinator_host_ = *std::move(started);
    return coordinator_host_->address();
  }

  const ShardedOptimizerOptions options_;
  const TrainerDevice trainer_device_;
  OwnerDevice::MakePlane make_device_plane_;  // null on the CPU
  const std::string no_blob_;
  absl::optional<std::string> next_blob_;  // that goes with the next step
  TrainerBlob blob_;
  std::shared_ptr<const ParameterMemory> parameters_;
  void* stream_of_parameters_ = nullptr;
  std::string coordinator_address_;
  std::string owner_address_;
  std::shared_ptr<CoordinatorHost> coordinator_host_;
  std::unique_ptr<CoordinatorClient> client_;
  CoordinatorClient* coordinator_ = nullptr;  // client_, or a test's
  std::unique_ptr<ShardOwner> owner_;
  std::shared_ptr<InspectionHost> inspection_;
  ShardViewRegistry* views_ = nullptr;  // of the inspection host, or of a test
  bool inspected_ = false;              // the view is registered there
};

}  // namespace

absl::StatusOr<std::unique_ptr<OwnerLink>> StartEmbeddedOwner(
    const ShardedOptimizerOptions& options, const OptimizerSpec& spec,
    const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates, bool replaces,
    const TrainerDevice& device) {
  ShardOwner::Options owner;
  owner.job = options.job;
  owner.optimizer = options.optimizer;
  owner.rank = options.rank;
  owner.spec = spec;
  owner.trainer_updates = trainer_updates;
  owner.threads = options.threads;
  if (options.snapshot_memory != 0) owner.snapshot_memory_bytes = options.snapshot_memory;
  owner.node = options.node;
  owner.join_timeout = options.join_timeout;
  static const uint64_t process = NewToken();
  owner.begins_anew = BeginsAnew{process, replaces};
  auto embedded = std::make_unique<EmbeddedOwner>(options, device);
  if (absl::Status status = embedded->Start(std::move(owner)); !status.ok()) return status;
  return std::unique_ptr<OwnerLink>(std::move(embedded));
}

}  // namespace optshard
