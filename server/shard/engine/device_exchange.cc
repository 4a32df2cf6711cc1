#include "server/shard/engine/device_exchange.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/device_wait.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "server/shard/engine/message_buffers.h"
#include "server/shard/engine/workspaces.h"
#include "server/update/offload_executor.h"

namespace optshard {
namespace {

// What a device may take for an update that has begun, however late the votes were.
constexpr absl::Duration kUpdatePatience = absl::Seconds(10);

absl::Status CheckUpdates(const StepContext& context) {
  for (size_t g = 0; g < context.groups->size(); ++g) {
    if ((*context.groups)[g].trainer_update == nullptr) continue;
    return absl::UnimplementedError(
        absl::StrFormat("param group %d has an update of the trainer's own, which computes on "
                        "CPUs; its parameters are on %s",
                        g, context.device->name()));
  }
  return absl::OkStatus();
}

absl::Status CheckRules(const StepContext& context, const Executor& executor) {
  for (size_t g = 0; g < context.groups->size(); ++g) {
    const absl::Status runs = executor.CheckRuns(*(*context.groups)[g].rule);
    if (!runs.ok()) return errors::WithContext(runs, absl::StrCat("param group ", g));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepExchange>> DeviceExchange::Create(const StepContext& context) {
  absl::StatusOr<BucketTasks> tasks = BucketTasks::Create(context);
  if (!tasks.ok()) return tasks.status();
  absl::Status usable = CheckUpdates(context);
  if (!usable.ok()) return usable;
  absl::StatusOr<std::shared_ptr<void>> stream = context.device->NewStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<std::unique_ptr<DeviceEvent>> ready = context.device->NewEvent();
  if (!ready.ok()) return ready.status();
  absl::StatusOr<std::unique_ptr<DeviceEvent>> done = context.device->NewEvent();
  if (!done.ok()) return done.status();
  std::vector<Staging> staging(context.world_size() == 1 ? 0 : context.staging_buffers);
  const int64_t bytes = StagingBytes(context.buckets(), [](DType gradient) { return gradient; });
  for (Staging& each : staging) {
    absl::StatusOr<std::shared_ptr<void>> memory = context.device->Allocate(bytes);
    if (!memory.ok()) return errors::WithContext(memory.status(), "the staging of buckets");
    each.memory = *std::move(memory);
  }
  std::unique_ptr<DeviceExchange> exchange(
      new DeviceExchange(context, *std::move(tasks), *std::move(stream), *std::move(ready),
                         *std::move(done), std::move(staging)));
  absl::Status made = exchange->MakeUpdater();
  if (!made.ok()) return made;
  return std::unique_ptr<StepExchange>(std::move(exchange));
}

absl::Status DeviceExchange::MakeUpdater() {
  if (context_.state_is_on_device()) {
    absl::StatusOr<std::unique_ptr<Executor>> executor = context_.make_executor(HostResources());
    if (!executor.ok()) return executor.status();
    executor_ = *std::move(executor);
    return CheckRules(context_, *executor_);
  }
  StepContext context = context_;
  context.make_executor =
      [this](const HostResources& host) -> absl::StatusOr<std::unique_ptr<Executor>> {
    absl::StatusOr<std::unique_ptr<Executor>> on_host = context_.make_executor(host);
    if (!on_host.ok()) return on_host;
    OffloadExecutor::Options options;
    options.device = context_.device;
    options.on_host = *std::move(on_host);
    options.clock = context_.clock;
    options.whole_bytes = WholeBytesFor(context_.buckets(), context_.rank, context_.space(),
                                        *context_.groups, context_.threads);
    return OffloadExecutor::Create(std::move(options));
  };
  absl::StatusOr<std::shared_ptr<void>> stream = context.device->NewStream();
  if (!stream.ok()) return stream.status();
  host_stream_ = *std::move(stream);
  absl::StatusOr<std::unique_ptr<DeviceEvent>> are_updated = context.device->NewEvent();
  if (!are_updated.ok()) return are_updated.status();
  are_updated_ = *std::move(are_updated);
  absl::StatusOr<std::unique_ptr<BucketUpdater>> updater =
      BucketUpdater::Create(context, On(host_stream_.get()));
  if (!updater.ok()) return updater.status();
  on_host_ = *std::move(updater);
  return absl::OkStatus();
}

DeviceExchange::DeviceExchange(const StepContext& context, BucketTasks tasks,
                               std::shared_ptr<void> stream,
                               std::unique_ptr<DeviceEvent> replica_is_ready,
                               std::unique_ptr<DeviceEvent> all_is_done,
                               std::vector<Staging> staging)
    : context_(context),
      reduces_(context.gradient_mode() == GradientMode::kReduce && context.world_size() > 1),
      publishes_(context.plan().policy != PartitionPolicy::kReplicated && context.world_size() > 1),
      tasks_of_(std::move(tasks)),
      staging_(std::move(staging)),
      stream_(std::move(stream)),
      replica_is_ready_(std::move(replica_is_ready)),
      all_is_done_(std::move(all_is_done)),
      reduced_(context.store->own_buckets().size()) {
  for (Rank owner = 0; owner < context.world_size(); ++owner) {
    averages_.push_back(AverageOver(context.plan().tree, owner));
  }
}

absl::Status DeviceExchange::Check(const ReplicaMemory& replica) const {
  for (size_t p = 0; p < replica.tensors().size(); ++p) {
    if (replica.tensors()[p].gradient_rows.marks == nullptr) continue;
    const auto parameter = static_cast<int>(p);
    return absl::InvalidArgumentError(absl::StrFormat(
        "the gradient of parameter %d \"%s\" is sparse, and steps on %s take dense ones: make it "
        "dense",
        parameter, context_.space().parameter(parameter).name, context_.device->name()));
  }
  return absl::OkStatus();
}

absl::Status DeviceExchange::Prepare(const StepRecord& record, const ReplicaMemory& replica,
                                     absl::Time deadline) {
  absl::Status status = BeginBehind(replica);
  if (status.ok() && reduces_) status = ReduceAll(record, replica);
  if (!status.ok() || on_host_ == nullptr) return status;
  status = AwaitTickets(deadline);
  if (!status.ok()) return status;
  return AwaitReached(*context_.device, *replica_is_ready_, deadline, *context_.clock);
}

absl::Status DeviceExchange::ReduceAll(const StepRecord& record, const ReplicaMemory& replica) {
  int own = 0;
  for (const Bucket& bucket : context_.buckets()) {
    const bool is_own = bucket.owner == context_.rank;
    const absl::StatusOr<Ticket*> ticket =
        Reduce(bucket, is_own ? context_.store->own_buckets()[own].reduced_gradient : Buffer(),
               record, replica);
    if (!ticket.ok()) return ticket.status();
    if (is_own) reduced_[own++] = *ticket;
  }
  // Whatever comes of the step, the trainer's next gradients are written behind it.
  absl::Status status;
  for (const std::unique_ptr<Ticket>& ticket : under_way_) {
    if (status.ok()) status = ticket->OrderOn(On(replica.stream()));
  }
  return status;
}

// Null where there is nothing to reduce.
absl::StatusOr<Ticket*> DeviceExchange::Reduce(const Bucket& bucket, Buffer average,
                                               const StepRecord& record,
                                               const ReplicaMemory& replica) {
  if (bucket.elements == 0) return nullptr;
  Staging* staging = nullptr;
  const void* contribution = replica.GradientsInPlace(bucket);
  if (contribution == nullptr) {
    absl::StatusOr<Staging*> taken = TakeStaging(replica.stream());
    if (!taken.ok()) return taken.status();
    staging = *taken;
    const absl::Status packed = Pack(
        bucket, bucket.gradient_dtype,
        [&](const BucketSpan& span) {
          return replica.tensor(span.parameter).gradient.From(span.parameter_offset_elements);
        },
        staging->memory.get(), replica.stream());
    if (!packed.ok()) return packed;
    contribution = staging->memory.get();
  }
  absl::StatusOr<Ticket*> ticket = Keep(
      context_.plane->Reduce(TagOf(context_, record.step, StepPhase::kReduce, bucket.index),
                             On(replica.stream()), averages_[bucket.owner], bucket.gradient_dtype,
                             contribution, average.data(), bucket.elements));
  if (ticket.ok() && staging != nullptr) staging->user = *ticket;
  return ticket;
}

absl::Status DeviceExchange::RunTrainerUpdates(const StepRecord&, const ReplicaMemory&) {
  return absl::InternalError("updates of the trainer's own on a device, which Create refuses");
}

absl::Status DeviceExchange::Apply(const StepRecord& record, const ReplicaMemory& replica,
                                   absl::Time deadline) {
  DeviceAccess& access = *context_.device_access;
  absl::Status begun = access.BeginUpdates(stream_.get());
  if (begun.ok() && on_host_ != nullptr) begun = access.OrderBehindCopies(host_stream_.get());
  if (!begun.ok()) return begun;
  int own = 0;
  for (const Bucket& bucket : context_.buckets()) {
    if (bucket.owner == context_.rank) {
      absl::Status updated = Update(own++, record, replica, deadline);
      if (!updated.ok()) return updated;
    }
    if (!publishes_ || !AnyUpdated(bucket, record)) continue;
    absl::Status published =
        Publish(bucket, bucket.owner,
                TagOf(context_, record.step, StepPhase::kPublish, bucket.index), replica);
    if (!published.ok()) return published;
  }
  const absl::Status ended = access.EndUpdates(stream_.get());
  return ended.ok() ? EndBefore(replica) : ended;
}

absl::Status DeviceExchange::Update(int own, const StepRecord& record, const ReplicaMemory& replica,
                                    absl::Time deadline) {
  const auto place = [&](const ShardStore::OwnBucket& bucket, const BucketSpan& span,
                         SpanUpdate* update) {
    const ReplicaTensor& tensor = replica.tensor(span.parameter);
    update->parameter = tensor.parameter.From(span.parameter_offset_elements);
    update->gradient = reduces_
                           ? ConstBuffer(bucket.reduced_gradient.From(span.bucket_offset_elements))
                           : tensor.gradient.From(span.parameter_offset_elements);
  };
  if (on_host_ == nullptr) return UpdateOnDevice(own, record, place);
  const absl::Time patient = std::max(deadline, context_.clock->Now() + kUpdatePatience);
  absl::Status updated = on_host_->Update(own, record, place, patient);
  if (updated.ok()) updated = context_.device->Record(*are_updated_, host_stream_.get());
  return updated.ok() ? context_.device->OrderAfter(stream_.get(), *are_updated_) : updated;
}

absl::Status DeviceExchange::UpdateOnDevice(int own, const StepRecord& record, SpanPlace place) {
  ShardStore& store = *context_.store;
  tasks_.clear();
  for (const int member : tasks_of_.Batch(own)) {
    if (!tasks_of_.IsUpdated(member, record)) {
      store.MarkUnchanged(member, record.step);
      continue;
    }
    tasks_of_.Append(member, record, place, &tasks_);
    Ticket* const reduced = reduced_[member];
    absl::Status ordered = reduced == nullptr ? absl::OkStatus() : reduced->OrderOn(OnUpdates());
    if (!ordered.ok()) return ordered;
    store.BeginWrite(member);
    store.EndWrite(member, record.step);
  }
  if (tasks_.empty()) return absl::OkStatus();
  const absl::StatusOr<Ticket*> started =
      Keep(executor_->Start(OnUpdates(), tasks_of_.RuleOf(own), tasks_));
  // It is on that stream already. So nobody waits where the ticket goes without having been waited
  // for.
  return started.ok() ? (*started)->OrderOn(OnUpdates()) : started.status();
}

absl::Status DeviceExchange::Publish(const Bucket& bucket, Rank from, const StepTag& tag,
                                     const ReplicaMemory& replica) {
  const auto parameter_of = [&](const BucketSpan& span) {
    return replica.tensor(span.parameter).parameter.From(span.parameter_offset_elements);
  };
  void* data = replica.ParametersInPlace(bucket);
  Staging* staging = nullptr;
  if (data == nullptr) {
    absl::StatusOr<Staging*> taken = TakeStaging(stream_.get());
    if (!taken.ok()) return taken.status();
    staging = *taken;
    data = staging->memory.get();
  }
  if (staging != nullptr && from == context_.rank) {
    absl::Status packed = Pack(bucket, bucket.dtype, parameter_of, data, stream_.get());
    if (!packed.ok()) return packed;
  }
  const absl::StatusOr<Ticket*> ticket =
      Keep(context_.plane->Publish(tag, OnUpdates(), from, averages_[bucket.owner].members, data,
                                   bucket.elements * SizeOf(bucket.dtype)));
  if (!ticket.ok()) return ticket.status();
  if (staging == nullptr) return absl::OkStatus();
  staging->user = *ticket;
  if (from == context_.rank) return absl::OkStatus();
  absl::Status unpacked = (*ticket)->OrderOn(OnUpdates());
  for (const BucketSpan& span : bucket.spans) {
    if (!unpacked.ok()) break;
    const ConstBuffer packed = ConstBuffer(data, bucket.dtype).From(span.bucket_offset_elements);
    unpacked = context_.device->Copy(parameter_of(span).data(), packed.data(),
                                     span.elements * SizeOf(bucket.dtype), stream_.get());
  }
  return unpacked;
}

absl::Status DeviceExchange::Complete(const StepRecord&, absl::Time deadline) {
  return on_host_ != nullptr ? AwaitAll(deadline) : absl::OkStatus();  // else Settle waits for it
}

absl::Status DeviceExchange::SyncParameters(StepNumber step, const ReplicaMemory& replica,
                                            absl::Time deadline) {
  absl::Status status = BeginBehind(replica);
  for (const Bucket& bucket : context_.buckets()) {
    if (!status.ok() || context_.world_size() == 1) break;
    // Where every rank owns everything, rank 0's buckets hold it all.
    if (context_.plan().policy == PartitionPolicy::kReplicated && bucket.owner != 0) continue;
    status = Publish(bucket, 0, TagOf(context_, step, StepPhase::kControl, bucket.index), replica);
  }
  if (status.ok()) status = EndBefore(replica);
  return status.ok() ? AwaitAll(deadline) : status;
}

absl::Status DeviceExchange::PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                               absl::Time deadline) {
  absl::Status status = BeginBehind(replica);
  for (const Bucket& bucket : context_.buckets()) {
    if (!status.ok() || !publishes_) break;
    status = Publish(bucket, bucket.owner, TagOf(context_, step, StepPhase::kControl, bucket.index),
                     replica);
  }
  if (status.ok()) status = EndBefore(replica);
  return status.ok() ? AwaitAll(deadline) : status;
}

absl::Status DeviceExchange::Settle(absl::Time deadline) {
  return under_way_.empty() ? absl::OkStatus() : AwaitAll(deadline);
}

absl::Status DeviceExchange::AwaitTickets(absl::Time deadline) {
  for (auto ticket = under_way_.begin(); ticket != under_way_.end(); ++ticket) {
    absl::Status status = (*ticket)->Wait(deadline);
    if (status.ok()) continue;
    under_way_.erase(under_way_.begin(), ticket + 1);
    return status;
  }
  Forget();
  return absl::OkStatus();
}

absl::Status DeviceExchange::AwaitAll(absl::Time deadline) {
  absl::Status status = AwaitTickets(deadline);
  if (!status.ok()) return status;
  // Copies out of staging memory are behind the last ticket.
  return AwaitReached(*context_.device, *all_is_done_, deadline, *context_.clock);
}

void DeviceExchange::Abandon(absl::Time deadline) {
  // The plane is broken: these return promptly, and with an error that is known already.
  for (const std::unique_ptr<Ticket>& ticket : under_way_) ticket->Wait(deadline).IgnoreError();
  Forget();
  // Updates and copies that were behind them.
  AwaitStream(*context_.device, stream_.get(), deadline, *context_.clock).IgnoreError();
  if (on_host_ == nullptr) return;
  AwaitStream(*context_.device, host_stream_.get(), deadline, *context_.clock).IgnoreError();
}

void DeviceExchange::Forget() {
  under_way_.clear();
  reduced_.assign(reduced_.size(), nullptr);
  for (Staging& staging : staging_) staging.user = nullptr;
}

absl::Status DeviceExchange::BeginBehind(const ReplicaMemory& replica) {
  absl::Status status = context_.device->Record(*replica_is_ready_, replica.stream());
  if (status.ok()) status = context_.device->OrderAfter(stream_.get(), *replica_is_ready_);
  if (status.ok()) status = context_.device_access->OrderBehindCopies(stream_.get());
  return status;
}

absl::Status DeviceExchange::EndBefore(const ReplicaMemory& replica) {
  absl::Status status;
  for (const std::unique_ptr<Ticket>& ticket : under_way_) {
    if (status.ok()) status = ticket->OrderOn(OnUpdates());
  }
  if (status.ok()) status = context_.device->Record(*all_is_done_, stream_.get());
  if (status.ok()) status = context_.device->OrderAfter(replica.stream(), *all_is_done_);
  return status;
}

absl::StatusOr<Ticket*> DeviceExchange::Keep(absl::StatusOr<std::unique_ptr<Ticket>> ticket) {
  if (!ticket.ok()) return ticket.status();
  under_way_.push_back(*std::move(ticket));
  return under_way_.back().get();
}

absl::StatusOr<DeviceExchange::Staging*> DeviceExchange::TakeStaging(void* stream) {
  Staging& staging = staging_[next_staging_++ % staging_.size()];
  if (staging.user != nullptr) {
    const absl::Status ordered = staging.user->OrderOn(On(stream));
    if (!ordered.ok()) return ordered;
  }
  staging.user = nullptr;
  return &staging;
}

absl::Status DeviceExchange::Pack(const Bucket& bucket, DType dtype, SpanArray array, void* to,
                                  void* stream) {
  // The padding, and spans without an array.
  absl::Status status = context_.device->Zero(to, bucket.elements * SizeOf(dtype), stream);
  for (const BucketSpan& span : bucket.spans) {
    const ConstBuffer from = array(span);
    if (!status.ok() || !from) continue;
    status = context_.device->Copy(Buffer(to, dtype).From(span.bucket_offset_elements).data(),
                                   from.data(), span.elements * SizeOf(dtype), stream);
  }
  return status;
}

}  // namespace optshard
