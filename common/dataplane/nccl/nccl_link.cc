#include "common/dataplane/nccl/nccl_link.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/dataplane/gloo/signals_blocked.h"
#include "common/dataplane/nccl/nccl_offer.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/new_thread.h"

namespace optshard {
namespace {

constexpr const char* kUniqueIdKey = "nccl/unique_id";

// Between two looks of a thread that waits for the device or for NCCL. An operation takes tens of
// microseconds at least.
constexpr absl::Duration kPollInterval = absl::Microseconds(20);
// For peers to learn of a break before kernels are aborted.
constexpr absl::Duration kTimeToTell = absl::Milliseconds(50);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

absl::StatusOr<std::shared_ptr<NcclLink>> NcclLink::Connect(const NcclPlaneOptions& options,
                                                            DataPlane* host) {
  const std::shared_ptr<NcclLink> link(new NcclLink(options, host));
  const absl::Status resources = link->AllocateResources(options);
  const absl::Status agreed = link->Agree(options, resources);
  if (!agreed.ok()) return agreed;
  const absl::Status connected = link->ConnectCommunicator(options);
  if (connected.ok()) return link;
  link->Break(connected);
  link->Leave();
  return connected;
}

NcclLink::NcclLink(const NcclPlaneOptions& options, DataPlane* host)
    : rank_(options.rank),
      operation_timeout_(options.operation_timeout),
      watch_interval_(options.watch_interval),
      naming_time_(options.naming_time),
      abort_grace_(options.abort_grace),
      host_(host) {
  for (Rank rank = 0; rank < options.world_size; ++rank) {
    if (rank != rank_) others_.push_back(rank);
  }
}

// Before the ranks connect, so that one that has not enough memory is named at once.
absl::Status NcclLink::AllocateResources(const NcclPlaneOptions& options) {
  if (!options.nccl.ok()) return options.nccl.status();
  if (!options.device.ok()) return options.device.status();
  nccl_ = *options.nccl;
  device_ = *options.device;
  absl::StatusOr<std::shared_ptr<void>> window = device_->Allocate(options.reduce_window_bytes);
  if (!window.ok()) {
    return errors::WithContext(
        window.status(), absl::StrCat("allocating ", options.reduce_window_bytes, " bytes on ",
                                      device_->name(), " (reduce_window_bytes)"));
  }
  window_ = *std::move(window);
  absl::StatusOr<std::shared_ptr<void>> stream = device_->NewStream();
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  absl::StatusOr<std::unique_ptr<DeviceEvent>> event = device_->NewEvent();
  if (!event.ok()) return event.status();
  callers_point_ = *std::move(event);
  return absl::OkStatus();
}

// Every rank tells all others what it has, also that it has nothing, and all conclude the same.
absl::Status NcclLink::Agree(const NcclPlaneOptions& options, const absl::Status& resources) {
  NcclOffer own;
  absl::Status trouble = resources;
  if (trouble.ok()) {
    const absl::StatusOr<std::string> identity = device_->Identity();
    trouble = identity.status();
    if (identity.ok()) own.SetDevice(*identity);
    own.version = nccl_->version();
  }
  if (!trouble.ok()) own.SetTrouble(trouble);
  own.deterministic = options.deterministic ? 1 : 0;
  own.reduce_window_bytes = options.reduce_window_bytes;
  std::vector<NcclOffer> offers(options.world_size);
  StepTag tag;
  tag.generation = options.generation;
  absl::MutexLock lock(&host_mutex_);
  absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      host_->AllGather(tag, ExecutionContext(), &own, offers.data(), sizeof own);
  if (!ticket.ok()) return ticket.status();
  absl::Status told = (*ticket)->Wait(options.deadline);
  if (!told.ok()) return told;
  absl::Status fits = CheckNcclOffers(offers);
  // All ranks refuse alike. Whoever left at once might be taken for lost by one that still reads.
  if (!fits.ok()) host_->Close(options.deadline).IgnoreError();
  return fits;
}

absl::Status NcclLink::ConnectCommunicator(const NcclPlaneOptions& options) {
  std::string id;
  if (rank_ == 0) {
    absl::StatusOr<std::string> made = nccl_->NewUniqueId();
    if (!made.ok()) return made.status();
    id = *std::move(made);
    absl::Status put = options.rendezvous->Put(kUniqueIdKey, id);
    if (!put.ok()) return put;
  } else {
    absl::StatusOr<std::string> got = options.rendezvous->Get(kUniqueIdKey, options.deadline);
    if (!got.ok()) return got.status();
    id = *std::move(got);
  }
  {
    absl::MutexLock lock(&calls_mutex_);
    absl::StatusOr<std::unique_ptr<NcclCommunicator>> communicator =
        nccl_->Connect(id, rank_, options.world_size);
    if (!communicator.ok()) return communicator.status();
    communicator_ = *std::move(communicator);
  }
  // From here on the thread ends the communicator, whatever happens.
  {
    absl::MutexLock lock(&mutex_);
    ended_ = false;
  }
  {
    const SignalsBlocked for_the_thread;
    absl::StatusOr<std::thread> thread =
        StartThread(StartSystemThread, [link = shared_from_this()] { link->WatchUntilItEnds(); });
    if (!thread.ok()) {
      // It stays as it is: aborting it here might block.
      absl::MutexLock lock(&mutex_);
      ended_ = true;
      return thread.status();
    }
    thread->detach();
  }
  absl::Status ready = AwaitReady(options.deadline, others_, "connecting over NCCL");
  for (const DeviceRange& range : options.registered) {
    if (!ready.ok()) return ready;
    ready = Call([&](NcclCommunicator& c) { return c.Register(range.data, range.bytes); });
    if (ready.ok()) ready = AwaitReady(options.deadline, others_, "registering memory with NCCL");
  }
  return ready;
}

absl::Status NcclLink::status() const {
  absl::MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  if (closing_) return absl::FailedPreconditionError("the data plane is closed");
  return absl::OkStatus();
}

bool NcclLink::IsOver() const {
  absl::MutexLock lock(&mutex_);
  return !broken_.ok() || closing_;
}

absl::StatusOr<std::shared_ptr<const NcclOperation>> NcclLink::Enqueue(
    std::string name, std::vector<Rank> waits_for, void* callers_stream,
    absl::FunctionRef<absl::Status(const NcclOperation& operation, void* stream)> enqueue) {
  absl::StatusOr<std::unique_ptr<DeviceEvent>> complete = device_->NewEvent();
  if (!complete.ok()) return Fail(complete.status());
  auto operation = std::make_shared<NcclOperation>();
  operation->name = std::move(name);
  operation->waits_for = std::move(waits_for);
  operation->started = Now();
  operation->complete = *std::move(complete);
  absl::Status enqueued = device_->Record(*callers_point_, callers_stream);
  if (enqueued.ok()) enqueued = device_->OrderAfter(stream_.get(), *callers_point_);
  if (enqueued.ok()) enqueued = enqueue(*operation, stream_.get());
  // Also behind the part of an operation that failed: Fail waits for it.
  enqueued.Update(device_->Record(*operation->complete, stream_.get()));
  {
    absl::MutexLock lock(&mutex_);
    pending_.push_back(operation);
  }
  if (!enqueued.ok()) return Fail(enqueued);
  return std::shared_ptr<const NcclOperation>(std::move(operation));
}

absl::Status NcclLink::Group(
    const NcclOperation& operation,
    absl::FunctionRef<absl::Status(NcclCommunicator& communicator)> calls) {
  const absl::Status made = Call([&](NcclCommunicator& communicator) {
    absl::Status status = nccl_->GroupStart();
    if (!status.ok()) return status;
    status = calls(communicator);
    status.Update(nccl_->GroupEnd());
    return status;
  });
  if (!made.ok()) return WhomTheHostPlaneMisses(made);
  return AwaitReady(operation.started + operation_timeout_, operation.waits_for, operation.name);
}

absl::Status NcclLink::Call(absl::FunctionRef<absl::Status(NcclCommunicator& communicator)> call) {
  absl::MutexLock lock(&calls_mutex_);
  if (communicator_ == nullptr) return status();
  return call(*communicator_);
}

absl::Status NcclLink::AwaitReady(absl::Time deadline, const std::vector<Rank>& waits_for,
                                  absl::string_view what) {
  while (true) {
    NcclState state = NcclState::kBusy;
    const absl::Status asked = Call([&](NcclCommunicator& communicator) {
      const absl::StatusOr<NcclState> now = communicator.state();
      if (now.ok()) state = *now;
      return now.status();
    });
    if (!asked.ok()) return WhomTheHostPlaneMisses(asked);
    if (state == NcclState::kReady) return absl::OkStatus();
    if (absl::Status broken = status(); !broken.ok()) return broken;
    if (Now() >= deadline) return errors::PeersTimedOut(waits_for, what);
    absl::SleepFor(kPollInterval);
  }
}

absl::Status NcclLink::OrderAfter(void* stream, const NcclOperation& operation) {
  absl::Status ordered = status();
  if (ordered.ok()) ordered = device_->OrderAfter(stream, *operation.complete);
  return ordered.ok() ? ordered : Fail(ordered);
}

absl::Status NcclLink::Wait(const NcclOperation& operation, absl::Time deadline) {
  while (true) {
    const absl::StatusOr<bool> complete = device_->IsReached(*operation.complete);
    // Asked for afterwards: an aborted operation is complete, too, and the link broke before.
    if (absl::Status broken = status(); !broken.ok()) {
      return IsDone(operation) ? absl::OkStatus() : Fail(broken);
    }
    if (!complete.ok()) return Fail(complete.status());
    if (*complete) return absl::OkStatus();
    if (Now() >= deadline) {
      const std::shared_ptr<const NcclOperation> oldest = OldestIncomplete();
      const NcclOperation& blamed = oldest == nullptr ? operation : *oldest;
      return Fail(errors::PeersTimedOut(blamed.waits_for, blamed.name));
    }
    absl::SleepFor(kPollInterval);
  }
}

// Operations complete in their order. Forgets those that have.
std::shared_ptr<const NcclOperation> NcclLink::OldestIncomplete() {
  absl::MutexLock lock(&mutex_);
  DropComplete();
  if (pending_.empty()) return nullptr;
  return pending_.front();
}

bool NcclLink::IsDone(const NcclOperation& operation) const {
  absl::MutexLock lock(&mutex_);
  return operation.is_done;
}

void NcclLink::DropComplete() {
  while (!pending_.empty()) {
    const absl::StatusOr<bool> reached = device_->IsReached(*pending_.front()->complete);
    if (!reached.ok() || !*reached) return;
    pending_.front()->is_done = broken_.ok();
    pending_.pop_front();
  }
}

void NcclLink::Break(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok() || closed_) return;
    DropComplete();  // nothing has been aborted yet
    broken_ = reason;
    broken_at_ = Now();
  }
  // The others learn whom this rank blames.
  absl::MutexLock lock(&host_mutex_);
  if (host_ != nullptr) host_->Abort(reason);
}

absl::Status NcclLink::Fail(const absl::Status& failure) {
  Break(failure);
  absl::Time until;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_.ok()) return failure;  // closed
    until = broken_at_ + abort_grace_;
  }
  if (AwaitEnded(until)) {
    while (OldestIncomplete() != nullptr && Now() < until) absl::SleepFor(kPollInterval);
  }
  return status();
}

bool NcclLink::AwaitEnded(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&ended_), deadline - Now());
}

absl::Status NcclLink::Close(absl::Time deadline) {
  std::shared_ptr<const NcclOperation> last;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return absl::OkStatus();
    if (!pending_.empty()) last = pending_.back();
  }
  absl::Status done = last == nullptr ? status() : Wait(*last, deadline);
  if (!done.ok()) return done;
  DataPlane* host = nullptr;
  {
    absl::MutexLock lock(&host_mutex_);
    host = host_;
    absl::MutexLock closing(&mutex_);
    closing_ = true;
  }
  done = host->Close(deadline);
  if (!done.ok()) return Fail(done);
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    closed_ = true;
  }
  // All ranks have done all operations: what is left is NCCL's own.
  if (!AwaitEnded(deadline)) {
    Log(LogLevel::kWarning, LogContext{},
        "rank %d: NCCL did not end its communicator in time; its memory stays allocated", rank_);
  }
  return absl::OkStatus();
}

void NcclLink::Leave() {
  Break(absl::CancelledError("the data plane is destroyed"));
  {
    absl::MutexLock lock(&host_mutex_);
    host_ = nullptr;
  }
  AwaitEnded(Now() + abort_grace_);
}

void NcclLink::WatchUntilItEnds() {
  while (LookAround()) {
  }
  std::unique_ptr<NcclCommunicator> communicator;
  {
    absl::MutexLock lock(&calls_mutex_);
    communicator = std::move(communicator_);
  }
  bool complete = false;
  {
    absl::MutexLock lock(&mutex_);
    complete = broken_.ok();
  }
  if (complete) {
    communicator->Destroy();
  } else {
    // Kernels that are aborted let those of their peers go on, without data. The peers are being
    // told of the break, and see what was complete before that.
    absl::SleepFor(std::min(2 * watch_interval_, kTimeToTell));
    communicator->Abort();
  }
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

// False: the link is broken or closed.
bool NcclLink::LookAround() {
  {
    absl::MutexLock lock(&mutex_);
    const auto over = [this] {
      mutex_.AssertReaderHeld();
      return !broken_.ok() || closed_;
    };
    if (mutex_.AwaitWithTimeout(absl::Condition(&over), watch_interval_)) return false;
    if (closing_) return true;
  }
  absl::Status failure =
      Call([](NcclCommunicator& communicator) { return communicator.state().status(); });
  if (!failure.ok()) failure = WhomTheHostPlaneMisses(failure);
  failure.Update(HostStatus());
  if (failure.ok()) {
    const std::shared_ptr<const NcclOperation> oldest = OldestIncomplete();
    if (oldest == nullptr || Now() < oldest->started + operation_timeout_) return true;
    failure = errors::PeersTimedOut(oldest->waits_for, oldest->name);
  }
  // A peer that has closed may end its communicator before this rank is told that all have.
  if (!IsOver()) Break(failure);
  return true;
}

// OK also where this rank closes it.
absl::Status NcclLink::HostStatus() {
  absl::MutexLock lock(&host_mutex_);
  if (host_ == nullptr || IsOver()) return absl::OkStatus();
  return host_->status();
}

// NCCL says that something failed, and not on which rank. The host plane knows whose process has
// ended, though perhaps a little later. The failure itself where it misses nobody.
absl::Status NcclLink::WhomTheHostPlaneMisses(const absl::Status& failure) {
  const absl::Time until = Now() + naming_time_;
  while (!IsOver() && Now() < until) {
    if (const absl::Status missed = HostStatus(); !missed.ok()) {
      return errors::WithContext(missed, failure.message());
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return failure;
}

}  // namespace optshard
