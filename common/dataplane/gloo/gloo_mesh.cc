#include "common/dataplane/gloo/gloo_mesh.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/dataplane/disconnect_reason.h"
#include "common/dataplane/gloo/connect_wire.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/dataplane/gloo/signals_blocked.h"
#include "common/dataplane/gloo/tcp_peers.h"
#include "common/errors.h"

namespace optshard {
namespace {

// How soon a broken connection is noticed by a rank that does not wait for it, or that waits in the
// middle of a message.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(20);

// How much later than the watcher Gloo itself would end a wait.
constexpr absl::Duration kWatchPatience = absl::Seconds(1);

// How long a rank that gives up tries to say why.
constexpr absl::Duration kReasonPatience = absl::Milliseconds(50);

// How long the others listen for it, over a connection that has not ended: a packet may be lost.
constexpr absl::Duration kListenPatience = absl::Seconds(1);

// No operation's slot, like that of the reasons.
constexpr uint64_t kSentinelSlot = ~uint64_t{1};

absl::Duration Until(absl::Time deadline) { return deadline - Clock::Monotonic().Now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(const GlooPlaneOptions& options) {
  std::unique_ptr<GlooWire> wire;
  std::vector<UniqueFd> connections;
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
    absl::StatusOr<std::vector<UniqueFd>> connected = ConnectTcpPeers(options);
    if (!connected.ok()) return connected.status();
    connections = *std::move(connected);
  }
  return ConnectOver(std::move(wire), std::move(connections), options);
}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::ConnectOver(std::unique_ptr<GlooWire> wire,
                                                                std::vector<UniqueFd> connections,
                                                                const GlooPlaneOptions& options) {
  std::shared_ptr<SmallMessages> small;
  if (wire != nullptr) {
    absl::StatusOr<std::shared_ptr<SmallMessages>> made =
        SmallMessages::Create(std::move(connections));
    if (!made.ok()) return made.status();
    small = *std::move(made);
  }
  auto mesh = std::unique_ptr<GlooMesh>(new GlooMesh(options, std::move(wire), std::move(small)));
  if (mesh->wire_ == nullptr) return mesh;
  absl::Status status = ConnectWire(*mesh->wire_, *mesh->small_, options);
  if (status.ok()) status = mesh->StartWatching();
  if (!status.ok()) return status;
  return mesh;
}

GlooMesh::GlooMesh(const GlooPlaneOptions& options, std::unique_ptr<GlooWire> wire,
                   std::shared_ptr<SmallMessages> small)
    : rank_(options.rank),
      world_size_(options.world_size),
      wire_(std::move(wire)),
      small_(std::move(small)),
      has_closed_(options.world_size),
      has_said_why_(options.world_size),
      received_reasons_(options.world_size),
      never_received_(options.world_size) {}

GlooMesh::~GlooMesh() {
  Break(absl::CancelledError("the data plane is destroyed"));
  StopWatching();
}

absl::Status GlooMesh::StartWatching() {
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    auto reason = small_->Receive(peer, kReasonSlot, &received_reasons_[peer], sizeof(uint64_t));
    if (!reason.ok()) return errors::PeerLost(peer, reason.status().message());
    disconnects_.push_back({peer, *std::move(reason)});
    auto sentinel = wire_->Receive(peer, kSentinelSlot, &never_received_[peer], sizeof(char));
    if (!sentinel.ok()) return errors::PeerLost(peer, sentinel.status().message());
    sentinels_.push_back({peer, *std::move(sentinel)});
  }
  const SignalsBlocked for_the_watcher;
  watcher_ = std::thread(&GlooMesh::WatchConnections, this);
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

absl::Status GlooMesh::Send(Rank peer, uint64_t slot, const void* data, size_t bytes,
                            Messages* messages) {
  return Start(peer, messages, [&] {
    return bytes <= SmallMessages::kMaxBytes ? small_->Send(peer, slot, data, bytes)
                                             : wire_->Send(peer, slot, data, bytes);
  });
}

absl::Status GlooMesh::Receive(Rank peer, uint64_t slot, void* data, size_t bytes,
                               Messages* messages) {
  const bool is_small = bytes <= SmallMessages::kMaxBytes;
  absl::Status started = Start(peer, messages, [&] {
    return is_small ? small_->Receive(peer, slot, data, bytes)
                    : wire_->Receive(peer, slot, data, bytes);
  });
  if (started.ok()) messages->back().precedes_goodbye = is_small;
  return started;
}

absl::Status GlooMesh::Start(Rank peer, Messages* messages,
                             absl::FunctionRef<absl::StatusOr<std::unique_ptr<Transfer>>()> start) {
  std::string why;
  {
    // Held while the message starts, so that Break cannot miss it.
    absl::MutexLock lock(&mutex_);
    if (broken_.ok()) {
      absl::StatusOr<std::unique_ptr<Transfer>> started = start();
      if (started.ok()) {
        std::shared_ptr<Transfer> transfer = *std::move(started);
        pending_.insert(transfer);
        messages->push_back({peer, std::move(transfer)});
        return absl::OkStatus();
      }
      why = std::string(started.status().message());
    }
  }
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  return BrokenBecause(LostConnection(peer, "starting a message", why));
}

absl::Status GlooMesh::Wait(Messages* messages, absl::Time deadline,
                            absl::FunctionRef<std::string()> what) {
  if (small_ != nullptr) small_->Flush();
  for (size_t i = 0; i < messages->size(); ++i) {
    Message& message = (*messages)[i];
    // Break's abort ends one wait for a message only; whoever comes later finds out here.
    if (absl::Status failure = Failure(); !failure.ok()) return failure;
    std::string why;
    switch (WaitFor(message, deadline, &why)) {
      case Transfer::Outcome::kDone: {
        absl::MutexLock lock(&mutex_);
        pending_.erase(message.transfer);
        break;
      }
      case Transfer::Outcome::kAborted:
        return BrokenBecause(absl::InternalError("a message was aborted by nobody"));
      case Transfer::Outcome::kBroken:
        return BrokenBecause(LostConnection(message.peer, what(), why));
      case Transfer::Outcome::kTimedOut:
        return TimedOut(*messages, i, what());
    }
  }
  messages->clear();
  return Failure();
}

Transfer::Outcome GlooMesh::WaitFor(const Message& message, absl::Time deadline, std::string* why) {
  absl::Duration timeout = Until(deadline);
  {
    absl::MutexLock lock(&mutex_);
    waited_for_ = &message;
    wait_deadline_ = deadline;
    ended_as_.reset();
    if (!stop_watching_) timeout += kWatchPatience;
  }
  const Transfer::Outcome outcome = message.transfer->Wait(timeout, why);
  absl::MutexLock lock(&mutex_);
  waited_for_ = nullptr;
  const bool by_watcher = outcome == Transfer::Outcome::kAborted && ended_as_ && broken_.ok();
  if (!by_watcher) return outcome;
  if (*ended_as_ == Transfer::Outcome::kBroken) *why = "nothing more comes";
  return *ended_as_;
}

absl::Status GlooMesh::TimedOut(const Messages& messages, size_t first_late,
                                const std::string& what) {
  std::vector<Rank> late = {messages[first_late].peer};
  const absl::Status first = errors::PeersTimedOut(late, what);
  Break(first);
  // Who else is late can only be asked now: Gloo closes the connections of who asks in vain.
  for (size_t i = first_late + 1; i < messages.size(); ++i) {
    std::string why;
    Transfer& transfer = *messages[i].transfer;
    Transfer::Outcome outcome = transfer.Wait(absl::ZeroDuration(), &why);
    // Break's abort comes first, whether or not it was done.
    if (outcome == Transfer::Outcome::kAborted) {
      outcome = transfer.Wait(absl::ZeroDuration(), &why);
    }
    const bool is_new = std::find(late.begin(), late.end(), messages[i].peer) == late.end();
    if (outcome != Transfer::Outcome::kDone && is_new) late.push_back(messages[i].peer);
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
  // With the first reason, whoever cuts: a thread that was woken by it has none of its own, and the
  // peers would blame this rank.
  Failure().IgnoreError();
}

// Whoever comes first cuts; the others wait until that is done.
void GlooMesh::Cut(const absl::Status& reason) {
  absl::MutexLock lock(&cut_mutex_);
  if (!disconnected_ && wire_ != nullptr) {
    TellPeersWhy(reason);
    if (HasClosed(reason)) {
      small_->Finish();
      wire_->Finish();
    } else {
      small_->Cut();
      wire_->Cut();
    }
  }
  disconnected_ = true;
}

void GlooMesh::TellPeersWhy(const absl::Status& reason) {
  std::vector<Rank> blamed = errors::RanksOf(reason);
  if (blamed.empty()) return;
  // It waits for this rank's goodbye.
  if (HasClosed(reason)) blamed.clear();
  const uint64_t encoded = DisconnectReason::Of(reason).Encode();
  std::vector<std::unique_ptr<Transfer>> sent;
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || std::find(blamed.begin(), blamed.end(), peer) != blamed.end()) continue;
    auto started = small_->Send(peer, kReasonSlot, &encoded, sizeof(encoded));
    if (started.ok()) sent.push_back(*std::move(started));
  }
  const absl::Time deadline = Clock::Monotonic().Now() + kReasonPatience;
  for (const auto& transfer : sent) {
    // A failure changes nothing: the connections are cut next.
    std::string why;
    transfer->Wait(Until(deadline), &why);
  }
}

absl::Status GlooMesh::LostConnection(Rank peer, absl::string_view what, absl::string_view why) {
  // The reason comes over another connection than the one that may have broken.
  const bool known = small_->ReadUntilReceived(peer, kReasonSlot, kListenPatience);
  // Until then the step's thread may be receiving the reason.
  const DisconnectReason reason =
      known ? DisconnectReason::Decode(received_reasons_[peer]) : DisconnectReason();
  return PeerDisconnected(rank_, peer, reason, absl::StrCat(what, ": ", why));
}

void GlooMesh::WatchConnections() {
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
    }
    if (!LookAtConnections()) return;
    absl::MutexLock lock(&mutex_);
    EndWait();
  }
}

bool GlooMesh::LookAtConnections() {
  for (const Messages* watched : {&disconnects_, &sentinels_}) {
    for (const Message& message : *watched) {
      // Its connections end, and nobody needs them.
      if (HasSeenClosed(message.peer)) continue;
      // Looks without waiting. For short messages this also moves on what a full socket held up.
      std::string why;
      message.transfer->Abort();
      const Transfer::Outcome outcome = message.transfer->Wait(absl::Hours(1), &why);
      bool closed = false;
      if (outcome == Transfer::Outcome::kDone) {
        has_said_why_[message.peer] = true;
        const uint64_t reason = received_reasons_[message.peer];
        closed = DisconnectReason::Decode(reason).kind == DisconnectReason::kClosed;
      } else if (outcome == Transfer::Outcome::kBroken) {
        const absl::Status lost = LostConnection(message.peer, "watching the connections", why);
        closed = HasClosed(lost);
        if (!closed) {
          Break(lost);
          return false;
        }
      }
      absl::MutexLock lock(&mutex_);
      has_closed_[message.peer] = closed;
    }
  }
  return true;
}

void GlooMesh::EndWait() {
  if (waited_for_ == nullptr) return;
  if (Until(wait_deadline_) <= absl::ZeroDuration()) {
    ended_as_ = Transfer::Outcome::kTimedOut;
  } else if (waited_for_->precedes_goodbye && has_closed_[waited_for_->peer]) {
    ended_as_ = Transfer::Outcome::kBroken;
  } else {
    return;
  }
  waited_for_->transfer->Abort();
  waited_for_ = nullptr;
}

void GlooMesh::StopWatching() {
  {
    absl::MutexLock lock(&mutex_);
    stop_watching_ = true;
  }
  if (watcher_.joinable()) watcher_.join();
}

bool GlooMesh::HasSeenClosed(Rank peer) const {
  absl::MutexLock lock(&mutex_);
  return has_closed_[peer];
}

absl::Status GlooMesh::AwaitGoodbyes(absl::Time deadline, absl::FunctionRef<std::string()> what) {
  while (true) {
    if (!LookAtConnections()) return Failure();
    bool all = true;
    for (const Message& from : disconnects_) {
      if (!HasSeenClosed(from.peer) && !has_said_why_[from.peer]) {
        all = false;
        continue;
      }
      const DisconnectReason reason = DisconnectReason::Decode(received_reasons_[from.peer]);
      if (reason.closed_of_own_accord()) continue;
      return BrokenBecause(PeerDisconnected(rank_, from.peer, reason, what()));
    }
    const absl::Duration left = Until(deadline);
    if (all || left <= absl::ZeroDuration()) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    const auto is_broken = [this] {
      mutex_.AssertReaderHeld();
      return !broken_.ok();
    };
    if (mutex_.AwaitWithTimeout(absl::Condition(&is_broken), std::min(left, kWatchInterval))) {
      return absl::OkStatus();  // whoever waits for the goodbyes finds out
    }
  }
}

absl::Status GlooMesh::Close(absl::Time deadline) {
  if (absl::Status usable = status(); !usable.ok()) return usable;
  StopWatching();
  const uint64_t closed = DisconnectReason{DisconnectReason::kClosed, -1}.Encode();
  Messages sent;
  for (const Message& from : disconnects_) {
    absl::Status status = Send(from.peer, kReasonSlot, &closed, sizeof(closed), &sent);
    if (!status.ok()) return status;
  }
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (const Message& from : disconnects_) pending_.insert(from.transfer);
  }
  // Break did not see them before.
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  const auto what = [] { return std::string("Close of the data plane"); };
  if (absl::Status status = AwaitGoodbyes(deadline, what); !status.ok()) return status;
  if (absl::Status status = Wait(&disconnects_, deadline, what); !status.ok()) return status;
  for (Rank peer = 0; peer < world_size_; ++peer) {
    const DisconnectReason reason = DisconnectReason::Decode(received_reasons_[peer]);
    if (peer == rank_ || reason.closed_of_own_accord()) continue;
    return BrokenBecause(PeerDisconnected(rank_, peer, reason, what()));
  }
  if (absl::Status status = Wait(&sent, deadline, what); !status.ok()) return status;
  absl::MutexLock lock(&cut_mutex_);
  if (!disconnected_ && wire_ != nullptr) {
    small_->Finish();
    wire_->Finish();
  }
  disconnected_ = true;
  return absl::OkStatus();
}

}  // namespace optshard
