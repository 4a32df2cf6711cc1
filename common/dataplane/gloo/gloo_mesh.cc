#include "common/dataplane/gloo/gloo_mesh.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/errors.h"

namespace optshard {
namespace {

// How soon a broken connection is noticed by a rank that does not wait for it, or that waits in the
// middle of a message.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(20);

// How much later than the watcher Gloo itself would end a wait.
constexpr absl::Duration kWatchPatience = absl::Seconds(1);

// How long a rank that gives up tries to say why.
constexpr absl::Duration kFarewellPatience = absl::Milliseconds(50);

// No operation's slot: they never have all bits of the phase set.
constexpr uint64_t kFarewellSlot = ~uint64_t{0};

constexpr absl::string_view kConnecting = "connecting the Gloo data plane";

absl::Duration Until(absl::Time deadline) { return deadline - Clock::Monotonic().Now(); }

std::string AddressKey(Generation generation, Rank of, Rank for_peer) {
  return absl::StrCat("gloo/", generation, "/", of, "/for/", for_peer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(const GlooPlaneOptions& options) {
  std::unique_ptr<GlooWire> wire;
  if (options.world_size > 1) {
    GlooWire::Options wire_options;
    wire_options.rank = options.rank;
    wire_options.world_size = options.world_size;
    wire_options.network = options.network;
    wire_options.connect_timeout = Until(options.deadline);
    absl::StatusOr<std::unique_ptr<GlooWire>> made = MakeGlooWire(wire_options);
    if (!made.ok()) {
      return errors::WithContext(
          made.status(), absl::StrCat("Gloo data plane on the network \"", options.network, "\""));
    }
    wire = *std::move(made);
  }
  return ConnectOver(std::move(wire), options);
}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::ConnectOver(std::unique_ptr<GlooWire> wire,
                                                                const GlooPlaneOptions& options) {
  auto mesh = std::unique_ptr<GlooMesh>(new GlooMesh(options, std::move(wire)));
  if (mesh->wire_ == nullptr) return mesh;
  if (absl::Status status = mesh->ConnectAll(options); !status.ok()) return status;
  if (absl::Status status = mesh->ReceiveFarewells(); !status.ok()) return status;
  mesh->watcher_ = std::thread(&GlooMesh::WatchConnections, mesh.get());
  return mesh;
}

GlooMesh::GlooMesh(const GlooPlaneOptions& options, std::unique_ptr<GlooWire> wire)
    : rank_(options.rank),
      world_size_(options.world_size),
      wire_(std::move(wire)),
      received_farewells_(options.world_size) {}

GlooMesh::~GlooMesh() {
  Break(absl::CancelledError("the data plane is destroyed"));
  StopWatching();
}

absl::Status GlooMesh::ConnectAll(const GlooPlaneOptions& options) {
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const absl::StatusOr<std::string> address = wire_->Listen(peer);
    if (!address.ok()) return errors::WithContext(address.status(), kConnecting);
    const absl::Status put =
        options.rendezvous->Put(AddressKey(options.generation, rank_, peer), *address);
    if (!put.ok()) return errors::WithContext(put, kConnecting);
  }
  std::vector<Rank> late;
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const absl::StatusOr<std::string> address =
        options.rendezvous->Get(AddressKey(options.generation, peer, rank_), options.deadline);
    if (absl::IsDeadlineExceeded(address.status())) {
      late.push_back(peer);
      continue;
    }
    if (!address.ok()) return errors::WithContext(address.status(), kConnecting);
    const absl::Status connected = wire_->Connect(peer, *address);
    if (connected.ok()) continue;
    // Gloo's own time-out is a few milliseconds short of the deadline.
    if (Until(options.deadline) > absl::Milliseconds(10)) {
      return errors::PeerLost(peer, absl::StrCat(kConnecting, ": ", connected.message()));
    }
    late.push_back(peer);
  }
  return late.empty() ? absl::OkStatus() : errors::PeersTimedOut(late, kConnecting);
}

absl::Status GlooMesh::ReceiveFarewells() {
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    auto started =
        wire_->Receive(peer, kFarewellSlot, &received_farewells_[peer], sizeof(Farewell));
    if (!started.ok()) return errors::PeerLost(peer, started.status().message());
    farewells_.push_back({peer, *std::move(started)});
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::status() {
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  absl::MutexLock lock(&mutex_);
  return closing_ ? absl::FailedPreconditionError("the data plane is closed") : absl::OkStatus();
}

absl::Status GlooMesh::Failure() {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    failure = broken_;
  }
  if (!failure.ok()) Cut(failure);
  return failure;
}

absl::Status GlooMesh::Add(Rank peer, absl::StatusOr<std::unique_ptr<GlooTransfer>> started,
                           Messages* messages) {
  if (!started.ok()) return LostConnection(peer, "starting a message", started.status().message());
  std::shared_ptr<GlooTransfer> transfer = *std::move(started);
  pending_.insert(transfer);
  messages->push_back({peer, std::move(transfer)});
  return absl::OkStatus();
}

absl::Status GlooMesh::Send(Rank peer, uint64_t slot, const void* data, size_t bytes,
                            Messages* messages) {
  absl::Status status;
  {
    // Held while the message starts, so that Break cannot miss it.
    absl::MutexLock lock(&mutex_);
    status = broken_.ok() ? Add(peer, wire_->Send(peer, slot, data, bytes), messages) : broken_;
  }
  return status.ok() ? status : BrokenBecause(status);
}

absl::Status GlooMesh::Receive(Rank peer, uint64_t slot, void* data, size_t bytes,
                               Messages* messages) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = broken_.ok() ? Add(peer, wire_->Receive(peer, slot, data, bytes), messages) : broken_;
  }
  return status.ok() ? status : BrokenBecause(status);
}

absl::Status GlooMesh::Wait(Messages* messages, absl::Time deadline,
                            absl::FunctionRef<std::string()> what) {
  for (size_t i = 0; i < messages->size(); ++i) {
    Message& message = (*messages)[i];
    // Break's abort ends one wait for a message only; whoever comes later finds out here.
    if (absl::Status failure = Failure(); !failure.ok()) return failure;
    std::string why;
    switch (WaitFor(*message.transfer, deadline, &why)) {
      case GlooTransfer::Outcome::kDone: {
        absl::MutexLock lock(&mutex_);
        pending_.erase(message.transfer);
        break;
      }
      case GlooTransfer::Outcome::kAborted:
        return BrokenBecause(absl::InternalError("a message was aborted by nobody"));
      case GlooTransfer::Outcome::kBroken:
        return BrokenBecause(LostConnection(message.peer, what(), why));
      case GlooTransfer::Outcome::kTimedOut:
        return TimedOut(*messages, i, what());
    }
  }
  messages->clear();
  return Failure();
}

GlooTransfer::Outcome GlooMesh::WaitFor(GlooTransfer& transfer, absl::Time deadline,
                                        std::string* why) {
  absl::Duration timeout = Until(deadline);
  {
    absl::MutexLock lock(&mutex_);
    waited_for_ = &transfer;
    wait_deadline_ = deadline;
    timed_out_ = false;
    if (!stop_watching_) timeout += kWatchPatience;
  }
  const GlooTransfer::Outcome outcome = transfer.Wait(timeout, why);
  absl::MutexLock lock(&mutex_);
  waited_for_ = nullptr;
  const bool by_watcher = outcome == GlooTransfer::Outcome::kAborted && timed_out_ && broken_.ok();
  return by_watcher ? GlooTransfer::Outcome::kTimedOut : outcome;
}

absl::Status GlooMesh::TimedOut(const Messages& messages, size_t first_late,
                                const std::string& what) {
  std::vector<Rank> late = {messages[first_late].peer};
  const absl::Status first = errors::PeersTimedOut(late, what);
  Break(first);
  // Who else is late can only be asked now: Gloo closes the connections of who asks in vain.
  for (size_t i = first_late + 1; i < messages.size(); ++i) {
    std::string why;
    GlooTransfer& transfer = *messages[i].transfer;
    GlooTransfer::Outcome outcome = transfer.Wait(absl::ZeroDuration(), &why);
    // Break's abort comes first, whether or not it was done.
    if (outcome == GlooTransfer::Outcome::kAborted) {
      outcome = transfer.Wait(absl::ZeroDuration(), &why);
    }
    const bool is_new = std::find(late.begin(), late.end(), messages[i].peer) == late.end();
    if (outcome != GlooTransfer::Outcome::kDone && is_new) late.push_back(messages[i].peer);
  }
  std::sort(late.begin(), late.end());
  {
    absl::MutexLock lock(&mutex_);
    if (broken_ == first) broken_ = errors::PeersTimedOut(late, what);
  }
  return Failure();
}

absl::Status GlooMesh::BrokenBecause(const absl::Status& reason) {
  Break(reason);
  return Failure();
}

void GlooMesh::Break(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (broken_.ok()) {
      broken_ = reason;
      for (const auto& transfer : pending_) transfer->Abort();
    }
  }
  Cut(reason);
}

// Whoever comes first cuts; the others wait until that is done.
void GlooMesh::Cut(const absl::Status& reason) {
  absl::MutexLock lock(&cut_mutex_);
  if (!disconnected_ && wire_ != nullptr) {
    SayWhy(reason);
    wire_->Cut();
  }
  disconnected_ = true;
}

void GlooMesh::SayWhy(const absl::Status& reason) {
  const std::vector<Rank> blamed = errors::RanksOf(reason);
  if (blamed.empty()) return;
  giving_up_farewell_.kind = errors::IsPeerLost(reason) ? Farewell::kLost : Farewell::kLate;
  giving_up_farewell_.about = blamed[0];
  std::vector<std::unique_ptr<GlooTransfer>> sent;
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || std::find(blamed.begin(), blamed.end(), peer) != blamed.end()) continue;
    auto started = wire_->Send(peer, kFarewellSlot, &giving_up_farewell_, sizeof(Farewell));
    if (started.ok()) sent.push_back(*std::move(started));
  }
  const absl::Time deadline = Clock::Monotonic().Now() + kFarewellPatience;
  for (const auto& transfer : sent) {
    // A failure changes nothing: the connections are cut next.
    std::string why;
    transfer->Wait(Until(deadline), &why);
  }
}

absl::Status GlooMesh::LostConnection(Rank peer, absl::string_view what,
                                      absl::string_view why) const {
  const Farewell& farewell = received_farewells_[peer];
  switch (farewell.kind) {
    case Farewell::kLost:
      return errors::PeerLost(farewell.about, absl::StrCat(what, ": rank ", peer, " says so"));
    case Farewell::kLate:
      return errors::PeersTimedOut(
          {farewell.about}, absl::StrCat(what, ": rank ", peer, " waited for it and gave up"));
    default:
      return errors::PeerLost(peer, absl::StrCat(what, ": ", why));
  }
}

void GlooMesh::WatchConnections() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  const auto over = [this] {
    mutex_.AssertReaderHeld();
    return stop_watching_ || !broken_.ok();
  };
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      absl::Duration pause = kWatchInterval;
      if (waited_for_ != nullptr) pause = std::min(pause, Until(wait_deadline_));
      if (mutex_.AwaitWithTimeout(absl::Condition(&over), pause)) return;
      if (waited_for_ != nullptr && Until(wait_deadline_) <= absl::ZeroDuration()) {
        timed_out_ = true;
        waited_for_->Abort();
        waited_for_ = nullptr;
      }
    }
    for (const Message& farewell : farewells_) {
      // Looks without waiting.
      std::string why;
      farewell.transfer->Abort();
      if (farewell.transfer->Wait(absl::Hours(1), &why) == GlooTransfer::Outcome::kBroken) {
        Break(LostConnection(farewell.peer, "watching the connections", why));
        return;
      }
    }
  }
}

void GlooMesh::StopWatching() {
  {
    absl::MutexLock lock(&mutex_);
    stop_watching_ = true;
  }
  if (watcher_.joinable()) watcher_.join();
}

absl::Status GlooMesh::Close(absl::Time deadline) {
  if (absl::Status usable = status(); !usable.ok()) return usable;
  StopWatching();
  Messages sent;
  for (Message& from : farewells_) {
    absl::Status status =
        Send(from.peer, kFarewellSlot, &closing_farewell_, sizeof(Farewell), &sent);
    if (!status.ok()) return status;
  }
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (const Message& from : farewells_) pending_.insert(from.transfer);
  }
  // Break did not see them before.
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  const auto what = [] { return std::string("Close of the data plane"); };
  if (absl::Status status = Wait(&farewells_, deadline, what); !status.ok()) return status;
  if (absl::Status status = Wait(&sent, deadline, what); !status.ok()) return status;
  absl::MutexLock lock(&cut_mutex_);
  if (!disconnected_ && wire_ != nullptr) wire_->Finish();
  disconnected_ = true;
  return absl::OkStatus();
}

}  // namespace optshard
