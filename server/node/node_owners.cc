#include "server/node/node_owners.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/memory_layout.h"
#include "common/request_limits.h"
#include "server/node/memory_need.h"
#include "server/node/rank_device.h"
#include "server/node/rank_set.h"
#include "server/shard/host_plane_factory.h"

namespace optshard {
namespace {

constexpr int kMostThreads = 1024;

// For people, and for the keeper.
std::string UnitName(const std::string& optimizer, Rank rank) {
  return absl::StrCat("rank ", rank, " of optimizer \"", optimizer, "\"");
}

absl::Status ShuttingDown() { return absl::UnavailableError("the shard server is shutting down"); }

// Lets others read the rank's view. Null: no more; when this returns nobody reads it any longer.
void Show(ShardViewRegistry& views, const std::string& optimizer, Rank rank,
          const ShardView* view) {
  if (view == nullptr) {
    views.Unregister(optimizer, rank);
    return;
  }
  const absl::Status shown = views.Register(optimizer, rank, view);
  if (shown.ok()) return;
  LogContext context;
  context.role = "server";
  context.rank = rank;
  Log(LogLevel::kWarning, context, "the rank cannot be inspected: %s", shown.ToString());
}

}  // namespace

NodeOwners::NodeOwners(Options options)
    : options_(std::move(options)),
      budget_(options_.memory_limit_bytes),
      on_host_(std::make_shared<HostSegments>(budget_)) {
  if (options_.views == nullptr) return;
  for (const Rank rank : options_.ranks) options_.views->AddRank(rank);
}

NodeOwners::~NodeOwners() { joining_.Cancel(ShuttingDown()); }

std::vector<int> NodeOwners::Admission::descriptors(int admissions) const {
  // The last ranks to go on may not have heard yet, but have prepared it.
  const std::shared_ptr<const ReplicaSegments> shared = parameters->replica(admissions);
  if (shared == nullptr) return {};
  std::vector<int> descriptors(kGroupsDescriptors);
  descriptors[kParametersDescriptor] = shared->parameters(admissions - 1).fd();
  descriptors[kGradientsDescriptor] = rank->replica(admissions)->gradients(admissions - 1).fd();
  descriptors[kDoorbellDescriptor] = attachment->doorbell.segment().fd();
  return descriptors;
}

absl::Status NodeOwners::CheckRequest(const AttachRequest& request) const {
  absl::Status length = CheckLength("the job's name", request.job);
  length.Update(CheckLength("the optimizer's name", request.optimizer));
  length.Update(CheckLength("the node's name", request.node));
  length.Update(CheckLength("the device's identity", request.device));
  if (!length.ok()) {
    return errors::WithContext(length, absl::StrCat("the trainer of rank ", request.rank));
  }
  if (request.job != options_.job) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the trainer of rank ", request.rank, " belongs to the job \"", request.job,
        "\", this shard server to \"", options_.job, "\"; attach to the server of its own job"));
  }
  if (options_.ranks.count(request.rank) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", request.rank, " is none of this shard server's: it hosts the ranks ",
        RankSetText(options_.ranks), " (--node-ranks); attach to the server of the rank's node"));
  }
  if (request.spec.world_size <= *options_.ranks.rbegin()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the trainer of rank %d says that the world size is %d, but this shard "
                        "server hosts the ranks %s (--node-ranks)",
                        request.rank, request.spec.world_size, RankSetText(options_.ranks)));
  }
  absl::Status valid = request.spec.Validate();
  // Of a device, once it is known.
  if (request.device.empty()) valid.Update(CheckSupported(request.spec.space));
  if (!valid.ok()) {
    return errors::WithContext(valid, absl::StrCat("the trainer of rank ", request.rank));
  }
  if (const int admissions = request.spec.space.admission_count(); admissions != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the trainer of rank %d brings param groups of %d admissions, expected 1: construct the "
        "optimizer with all of its groups",
        request.rank, admissions));
  }
  const uint64_t digest = MemoryLayout(request.spec.space).Digest();
  if (request.layout_digest != digest) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the trainer of rank %d lays its parameters out with the digest 0x%016x, this shard server "
        "with 0x%016x; install the same release of optshard for both",
        request.rank, request.layout_digest, digest));
  }
  const auto field = [&](absl::string_view name, auto actual, absl::string_view expected) {
    return absl::InvalidArgumentError(absl::StrCat("the trainer of rank ", request.rank, " gives ",
                                                   name, " = ", actual, ", expected ", expected));
  };
  if (request.threads < 0 || request.threads > kMostThreads) {
    return field("threads", request.threads,
                 absl::StrCat("0 (a share of the CPUs) to ", kMostThreads));
  }
  if (request.join_timeout <= absl::ZeroDuration()) {
    return field("join_timeout", absl::FormatDuration(request.join_timeout), "more than none");
  }
  if (request.device.empty() && request.state_on_host) {
    return field("state_on_host", "true", "false: its parameters are not on a device");
  }
  if (!request.device.empty() && request.spec.share_parameters) {
    return field("share_parameters", "true",
                 "false: ranks share one copy in memory of a host only, and its parameters are on "
                 "a device");
  }
  if (request.spec.share_parameters &&
      static_cast<int>(options_.ranks.size()) != request.spec.world_size) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d asks for share_parameters, which needs all %d ranks of the job on one shard "
        "server; this one hosts %s (--node-ranks)",
        request.rank, request.spec.world_size, RankSetText(options_.ranks)));
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeOwners::Admission> NodeOwners::Attach(const AttachRequest& request,
                                                         ProcessHandle process,
                                                         const std::function<bool()>& here) {
  absl::Status valid = CheckRequest(request);
  if (!valid.ok()) return valid;
  absl::StatusOr<std::shared_ptr<HostedRank>> rank = FindOrHost(request);
  if (!rank.ok()) return rank.status();
  Admission admission;
  admission.rank = *std::move(rank);
  absl::StatusOr<std::shared_ptr<Attachment>> attachment =
      admission.rank->Attach(request, std::move(process), here, &admission.reply);
  if (!attachment.ok()) return attachment.status();
  admission.attachment = *std::move(attachment);
  admission.parameters = admission.rank;
  if (!admission.rank->replica(1)->has_parameters()) {
    // All ranks have joined by now, this one among them.
    absl::MutexLock lock(&mutex_);
    const Rank lowest = *options_.ranks.begin();
    const auto found = hosted_.find({request.optimizer, lowest});
    if (found == hosted_.end()) {
      admission.rank->Detach(admission.attachment, "its trainer was sent away");
      return absl::UnavailableError(
          absl::StrCat("rank ", lowest, ", whose parameters all ranks share, has gone"));
    }
    admission.parameters = found->second;
    admission.reply.parameters_rank = lowest;
  }
  return admission;
}

absl::StatusOr<std::shared_ptr<HostedRank>> NodeOwners::FindOrHost(const AttachRequest& request) {
  const Key key = {request.optimizer, request.rank};
  while (true) {
    // Destroyed outside of the lock, for that waits for its thread, which has ended; and before
    // another one is hosted, which may need the memory that this one still has.
    std::shared_ptr<HostedRank> useless;
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      return absl::UnavailableError("the shard server is shutting down and takes no trainers");
    }
    const auto found = hosted_.find(key);
    if (found == hosted_.end()) {
      absl::StatusOr<std::shared_ptr<HostedRank>> made = Host(request);
      if (made.ok()) {
        hosted_[key] = *made;
      } else {
        Forget(key).IgnoreError();
      }
      return made;
    }
    if (!found->second->Useless()) return found->second;
    useless = std::move(found->second);
    hosted_.erase(found);
    absl::Status forgotten = Forget(key);
    if (!forgotten.ok()) return forgotten;
  }
}

// Or its memory would stay taken.
absl::Status NodeOwners::Forget(const Key& key) {
  if (options_.keeper == nullptr) return absl::OkStatus();
  return options_.keeper->Forget(UnitName(key.first, key.second));
}

absl::StatusOr<MemoryNeed> NodeOwners::NeedOf(const AttachRequest& request) const {
  const bool has_parameters =
      !request.spec.share_parameters || request.rank == *options_.ranks.begin();
  const int members = MessageMembers(request.spec.world_size,
                                     static_cast<int>(options_.ranks.size()), options_.plane);
  return MemoryNeedOf(request, MemoryLayout(request.spec.space), has_parameters, members);
}

absl::StatusOr<std::shared_ptr<RankMemory>> NodeOwners::Allocate(const AttachRequest& request,
                                                                 const MemoryNeed& need) {
  // All of it at once, before anything is allocated; the segments then reserve their own parts.
  const int64_t snapshots = options_.snapshot_memory_bytes.value_or(0);
  const int64_t all = SaturatingAdd(need.total(), snapshots);
  absl::Status fits =
      budget_.Reserve(all, absl::StrCat(UnitName(request.optimizer, request.rank), ", with ",
                                        ToString(need), " and ", snapshots, " for snapshots,"));
  if (!fits.ok()) return fits;
  budget_.Release(all);
  const absl::StatusOr<RankPlaces> places = PlacesOf(request, on_host_, options_.find_device);
  if (!places.ok()) return places.status();
  return RankMemory::Create(request, need, *places);
}

absl::StatusOr<std::shared_ptr<HostedRank>> NodeOwners::Host(const AttachRequest& request) {
  const absl::StatusOr<MemoryNeed> need = NeedOf(request);
  if (!need.ok()) return need.status();
  absl::StatusOr<std::shared_ptr<RankMemory>> memory = Allocate(request, *need);
  if (!memory.ok()) return memory.status();
  if (options_.keeper != nullptr) {
    absl::Status kept =
        options_.keeper->Keep(UnitName(request.optimizer, request.rank), (*memory)->descriptors());
    if (!kept.ok()) return kept;
  }
  return Host(*std::move(memory), need->own_bytes(), 0);
}

// Kept before the ranks can go on with it.
absl::Status NodeOwners::Prepare(RankMemory& memory, RankReservation& own,
                                 const AttachRequest& grown) {
  AttachRequest present = memory.first_request();
  present.spec = *memory.spec(memory.admissions() - 1);
  const absl::StatusOr<MemoryNeed> before = NeedOf(present);
  if (!before.ok()) return before.status();
  const absl::StatusOr<MemoryNeed> need = NeedOf(grown);
  if (!need.ok()) return need.status();
  const std::string unit = UnitName(grown.optimizer, grown.rank);
  const std::string what = absl::StrCat("added param groups of ", unit);
  const int64_t more = BytesToGrow(*before, *need);
  // All of it at once, as when the rank was first hosted.
  absl::Status fits = budget_.Reserve(more, what);
  if (!fits.ok()) return fits;
  budget_.Release(more);
  fits = own.AddPrepared(need->own_bytes() - before->own_bytes(), what);
  if (!fits.ok()) return fits;
  absl::Status made = memory.Prepare(grown, *need);
  if (made.ok() && options_.keeper != nullptr) {
    made = options_.keeper->Keep(unit, memory.descriptors());
  }
  if (!made.ok()) Unprepare(memory, own);
  return made;
}

void NodeOwners::DropPrepared(RankMemory& memory, RankReservation& own) {
  if (memory.prepared_spec() != nullptr) Unprepare(memory, own);
}

// Where the keeper cannot be told, the next server drops it.
void NodeOwners::Unprepare(RankMemory& memory, RankReservation& own) {
  memory.DropPrepared();
  own.DropPrepared();
  if (options_.keeper == nullptr) return;
  const AttachRequest& first = memory.first_request();
  options_.keeper->Keep(UnitName(first.optimizer, first.rank), memory.descriptors()).IgnoreError();
}

absl::Status NodeOwners::TakeOver(std::vector<KeptUnit> units) {
  absl::MutexLock lock(&mutex_);
  for (KeptUnit& unit : units) {
    absl::StatusOr<std::shared_ptr<RankMemory>> memory = RankMemory::Adopt(
        std::move(unit.descriptors), *on_host_, [this](const AttachRequest& first) {
          return PlacesOf(first, on_host_, options_.find_device);
        });
    if (!memory.ok()) return errors::WithContext(memory.status(), unit.name);
    AttachRequest request = (*memory)->first_request();
    if (!(*memory)->synced()) {
      // Nothing to lose yet: its trainers begin anew.
      absl::Status forgotten = options_.keeper->Forget(unit.name);
      if (!forgotten.ok()) return forgotten;
      continue;
    }
    request.spec = *(*memory)->spec((*memory)->admissions() - 1);
    const absl::StatusOr<MemoryNeed> need = NeedOf(request);
    if (!need.ok()) return errors::WithContext(need.status(), unit.name);
    // The ranks may go on with what was prepared.
    int64_t prepared_bytes = 0;
    const std::shared_ptr<const OptimizerSpec> prepared = (*memory)->prepared_spec();
    if (prepared != nullptr) {
      request.spec = *prepared;
      const absl::StatusOr<MemoryNeed> grown = NeedOf(request);
      if (!grown.ok()) return errors::WithContext(grown.status(), unit.name);
      prepared_bytes = grown->own_bytes() - need->own_bytes();
    }
    const Key key = {request.optimizer, request.rank};
    absl::StatusOr<std::shared_ptr<HostedRank>> hosted =
        Host(*std::move(memory), need->own_bytes(), prepared_bytes);
    if (!hosted.ok()) return errors::WithContext(hosted.status(), unit.name);
    hosted_[key] = *std::move(hosted);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<HostedRank>> NodeOwners::Host(std::shared_ptr<RankMemory> memory,
                                                             int64_t own_bytes,
                                                             int64_t prepared_bytes) {
  const AttachRequest& request = memory->first_request();
  HostedRank::Options rank;
  const auto own = std::make_shared<RankReservation>(&budget_);
  const std::string what = absl::StrCat("reduced gradients, messages, workspaces and transfers of ",
                                        UnitName(request.optimizer, request.rank));
  absl::Status fits = own->Add(own_bytes, what);
  if (fits.ok()) fits = own->AddPrepared(prepared_bytes, what);
  if (!fits.ok()) return fits;
  rank.reservation = own;
  rank.prepare_memory = [this, memory, own](const AttachRequest& grown) {
    return Prepare(*memory, *own, grown);
  };
  rank.drop_prepared = [this, memory, own] { DropPrepared(*memory, *own); };
  rank.keeper = options_.keeper == nullptr ? 0 : options_.keeper->pid();
  rank.coordinator = options_.coordinator;
  rank.snapshot_memory_bytes = options_.snapshot_memory_bytes;
  rank.joining = &joining_;
  ReplicaOfRank on_host;  // what the others can reach
  if (request.device.empty()) {
    on_host =
        [memory](
            const PlaneRequest& plane) -> absl::StatusOr<std::shared_ptr<const ReplicaSegments>> {
      return memory->replica(plane.layout->admission_count());
    };
  }
  rank.plane_factory = MakeHostPlaneFactory(
      options_.plane, options_.network, std::move(on_host),
      [told = rank.plane_notice](const PlaneNotice& notice) { *told = notice; });
  if (!request.device.empty()) {
    const absl::StatusOr<OwnerDevice> device = DeviceOf(request, options_.find_device);
    if (!device.ok()) return device.status();
    absl::StatusOr<std::shared_ptr<void>> stream = device->device->NewStream();
    if (!stream.ok()) return stream.status();
    rank.device = *device;
    rank.stream = *std::move(stream);
    rank.plane_factory = BetweenDevices(device->make_plane, std::move(rank.plane_factory));
  }
  rank.owner_address = options_.owner_address;
  rank.coordinator_address = options_.coordinator_address;
  rank.show = [views = options_.views, optimizer = request.optimizer,
               number = request.rank](const ShardView* view) {
    if (views != nullptr) Show(*views, optimizer, number, view);
  };
  rank.budget = &budget_;
  std::shared_ptr<StepRounds>& rounds = rounds_[request.optimizer];
  if (rounds == nullptr) rounds = std::make_shared<StepRounds>();
  rank.rounds = rounds;
  rank.memory = std::move(memory);
  return std::make_shared<HostedRank>(std::move(rank));
}

std::vector<std::shared_ptr<HostedRank>> NodeOwners::Hosted() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<HostedRank>> ranks;
  for (const auto& [key, rank] : hosted_) ranks.push_back(rank);
  return ranks;
}

bool NodeOwners::Ready() const {
  const std::vector<std::shared_ptr<HostedRank>> hosted = Hosted();
  size_t optimizers = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return false;
    optimizers = rounds_.size();
  }
  return optimizers > 0 && hosted.size() == optimizers * options_.ranks.size() &&
         std::all_of(hosted.begin(), hosted.end(),
                     [](const std::shared_ptr<HostedRank>& rank) { return rank->Ready(); });
}

bool NodeOwners::WaitsForOthers(const std::string& optimizer, Rank rank) const {
  absl::MutexLock lock(&mutex_);
  const auto rounds = rounds_.find(optimizer);
  return rounds != rounds_.end() && rounds->second->IsAhead(rank);
}

bool NodeOwners::Drain(absl::Duration grace) {
  const absl::Time deadline = Clock::Monotonic().Now() + grace;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [optimizer, rounds] : rounds_) rounds->Drain();
  }
  joining_.Cancel(ShuttingDown());
  const std::vector<std::shared_ptr<HostedRank>> hosted = Hosted();
  for (const std::shared_ptr<HostedRank>& rank : hosted) rank->Drain();
  bool in_order = true;
  for (const std::shared_ptr<HostedRank>& rank : hosted) {
    in_order = rank->WaitEnded(deadline) && in_order;
  }
  if (in_order) return true;
  for (const std::shared_ptr<HostedRank>& rank : hosted) {
    rank->AbortPlane(ShuttingDown());
  }
  return false;
}

}  // namespace optshard
