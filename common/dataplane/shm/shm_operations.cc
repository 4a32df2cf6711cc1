#include "common/dataplane/shm/shm_operations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/dataplane/disconnect_reason.h"
#include "common/dataplane/tree_average.h"
#include "common/errors.h"

namespace optshard {
namespace {

uint64_t PiecesOf(size_t bytes) {
  return (bytes + Mailbox::kPieceBytes - 1) / Mailbox::kPieceBytes;
}

// The piece'th one of a message.
size_t PieceBytes(size_t message_bytes, uint64_t piece) {
  return std::min(Mailbox::kPieceBytes, message_bytes - piece * Mailbox::kPieceBytes);
}

std::string NameOf(const ShmOperations::Operation& operation) {
  return absl::StrCat(operation.kind, " of generation ", operation.tag.generation, ", step ",
                      operation.tag.step, ", bucket ", operation.tag.bucket);
}

bool SameTag(const StepTag& a, const StepTag& b) {
  return a.generation == b.generation && a.step == b.step && a.bucket == b.bucket &&
         a.phase == b.phase;
}

}  // namespace

bool ShmOperations::Operation::Done() const {
  return next_send == end_send &&
         std::all_of(receives.begin(), receives.end(),
                     [](const Receive& receive) { return receive.next == receive.end; });
}

ShmOperations::ShmOperations(std::unique_ptr<ShmPeers> peers, const ShmPlaneOptions& options)
    : rank_(options.rank),
      spin_(options.spin),
      peers_(std::move(peers)),
      next_number_(options.world_size),
      receive_is_blocked_(options.world_size) {
  peers_->Watch([this](Rank peer) {
    // One that closed in good order has taken and given all before.
    if (peers_->mailbox(peer).disconnect_reason().kind != DisconnectReason::kClosed) {
      Break(WhyPeerLeft(peer));
    }
    peers_->own_mailbox().bell().Ring();
  });
}

ShmOperations::~ShmOperations() { peers_->StopWatching(); }

void ShmOperations::Start(const std::shared_ptr<Operation>& operation,
                          absl::Span<const Rank> senders, size_t bytes) {
  const uint64_t pieces = PiecesOf(bytes);
  for (const Rank sender : senders) {
    const uint64_t first = next_number_[sender];
    next_number_[sender] += pieces;
    if (sender == rank_) {
      operation->send_bytes = bytes;
      operation->first_send = operation->next_send = first;
      operation->end_send = operation->readers.empty() ? first : first + pieces;
    }
    for (Operation::Receive& receive : operation->receives) {
      if (receive.from != sender) continue;
      receive.first = receive.next = first;
      receive.end = first + pieces;
    }
  }
  operation->receive_bytes = bytes;
  pending_.push_back(operation);
  MoveOn();
}

absl::Status ShmOperations::Wait(const Operation& operation, absl::Time deadline) {
  Bell& bell = peers_->own_mailbox().bell();
  while (true) {
    const uint32_t heard = bell.Count();
    if (!gave_up_) MoveOn();
    // Also of a broken plane: what is complete is complete.
    if (operation.Done()) return absl::OkStatus();
    BreakIfAPeerLeft();
    for (const Rank peer : ClosedTooEarly(operation)) Break(WhyPeerLeft(peer));
    absl::Status why = broken();
    if (why.ok() && bell.Wait(heard, deadline, spin_)) continue;
    gave_up_ = true;
    if (!why.ok()) return why;
    Break(errors::PeersTimedOut(WaitedFor(operation), NameOf(operation)));
    return broken();
  }
}

absl::Status ShmOperations::Close(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    if (closing_) return absl::OkStatus();
    closing_ = true;
  }
  peers_->own_mailbox().SetDisconnectReason({DisconnectReason::kClosed, -1});
  for (const Rank peer : peers_->ranks()) peers_->mailbox(peer).bell().Ring();
  Bell& bell = peers_->own_mailbox().bell();
  while (true) {
    const uint32_t heard = bell.Count();
    std::vector<Rank> open;
    for (const Rank peer : peers_->ranks()) {
      const DisconnectReason reason = peers_->mailbox(peer).disconnect_reason();
      if (reason.kind != DisconnectReason::kClosed) {
        open.push_back(peer);
      } else if (!reason.closed_of_own_accord()) {
        return WhyPeerLeft(peer);  // it waited for a rank that had closed
      }
    }
    if (open.empty()) return absl::OkStatus();
    BreakIfAPeerLeft();
    absl::Status why = broken();
    if (!why.ok()) return why;
    if (bell.Wait(heard, deadline, spin_)) continue;
    Break(errors::PeersTimedOut(open, "closing the data plane"));
    return broken();
  }
}

absl::Status ShmOperations::status() const {
  absl::MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  if (closing_) return absl::FailedPreconditionError("the data plane has been closed");
  return absl::OkStatus();
}

absl::Status ShmOperations::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

void ShmOperations::Break(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  if (peers_->in_forked_child()) return;  // its parent goes on, and has the mailboxes
  peers_->own_mailbox().SetDisconnectReason(DisconnectReason::Of(reason));
  for (const Rank rank : peers_->ranks()) peers_->mailbox(rank).bell().Ring();
}

// Every operation as far as it goes, in their order; the pieces of one rank stay in order, too.
void ShmOperations::MoveOn() {
  send_is_blocked_ = false;
  std::fill(receive_is_blocked_.begin(), receive_is_blocked_.end(), false);
  for (const std::shared_ptr<Operation>& operation : pending_) {
    Send(*operation);
    if (operation->sums) {
      TakeSum(*operation);
    } else {
      Take(*operation);
    }
  }
  while (!pending_.empty() && pending_.front()->Done()) pending_.pop_front();
}

void ShmOperations::Send(Operation& operation) {
  Mailbox& mailbox = peers_->own_mailbox();
  for (; operation.next_send < operation.end_send; ++operation.next_send) {
    if (send_is_blocked_) return;
    const uint64_t number = operation.next_send;
    if (!SlotIsFree(number)) {
      send_is_blocked_ = true;
      return;
    }
    const uint64_t piece = number - operation.first_send;
    mailbox.WritePiece(number, {operation.tag, operation.send_bytes},
                       operation.send + piece * Mailbox::kPieceBytes,
                       PieceBytes(operation.send_bytes, piece));
    occupants_[number % Mailbox::kSlots] = {number, operation.readers};
    for (const Rank reader : operation.readers) peers_->mailbox(reader).bell().Ring();
  }
}

bool ShmOperations::SlotIsFree(uint64_t number) {
  const Occupant& occupant = occupants_[number % Mailbox::kSlots];
  const auto all_took = [&] {
    return std::all_of(occupant.readers.begin(), occupant.readers.end(), [&](Rank reader) {
      return peers_->mailbox(reader).taken(rank_) > occupant.number;
    });
  };
  if (all_took()) return true;
  // Said before the second look: a reader that takes it later rings.
  peers_->own_mailbox().SetWaitsForSpace(true);
  if (!all_took()) return false;
  peers_->own_mailbox().SetWaitsForSpace(false);
  return true;
}

bool ShmOperations::HasPiece(Operation& operation, const Operation::Receive& receive) {
  if (receive_is_blocked_[receive.from]) return false;
  const Mailbox& from = peers_->mailbox(receive.from);
  if (from.posted() <= receive.next) {
    receive_is_blocked_[receive.from] = true;
    return false;
  }
  const Mailbox::PieceHeader& header = from.piece_header(receive.next);
  if (SameTag(header.tag, operation.tag) && header.message_bytes == operation.receive_bytes) {
    return true;
  }
  receive_is_blocked_[receive.from] = true;
  Break(errors::RanksDisagree(
      {receive.from},
      absl::StrFormat("rank %d takes part in %s with %d bytes, but rank %d in an operation of step "
                      "%d, bucket %d, phase %d with %d bytes",
                      rank_, NameOf(operation), operation.receive_bytes, receive.from,
                      header.tag.step, header.tag.bucket, static_cast<int>(header.tag.phase),
                      header.message_bytes)));
  return false;
}

void ShmOperations::Taken(Operation::Receive& receive) {
  ++receive.next;
  peers_->own_mailbox().SetTaken(receive.from, receive.next);
  Mailbox& from = peers_->mailbox(receive.from);
  if (from.waits_for_space()) {
    from.SetWaitsForSpace(false);
    from.bell().Ring();
  }
}

void ShmOperations::Take(Operation& operation) {
  for (Operation::Receive& receive : operation.receives) {
    while (receive.next < receive.end && HasPiece(operation, receive)) {
      const uint64_t piece = receive.next - receive.first;
      std::memcpy(receive.to + piece * Mailbox::kPieceBytes,
                  peers_->mailbox(receive.from).piece(receive.next),
                  PieceBytes(operation.receive_bytes, piece));
      Taken(receive);
    }
    if (receive.next < receive.end) receive_is_blocked_[receive.from] = true;
  }
}

// All receives of a sum are at the same piece, and in the order of the reduction's members.
void ShmOperations::TakeSum(Operation& operation) {
  std::vector<Operation::Receive>& receives = operation.receives;
  while (receives.front().next < receives.front().end) {
    bool all = true;
    for (const Operation::Receive& receive : receives) {
      all = HasPiece(operation, receive) && all;
    }
    if (!all) break;
    const uint64_t piece = receives.front().next - receives.front().first;
    const size_t offset = piece * Mailbox::kPieceBytes;
    contributions_.clear();
    auto receive = receives.begin();
    for (const Rank member : operation.reduction.members) {
      contributions_.push_back(member == rank_ ? operation.contribution + offset
                                               : peers_->mailbox(member).piece((receive++)->next));
    }
    const size_t element = SizeOf(operation.dtype);
    ReduceGroups(operation.reduction.group_sizes, operation.reduction.divisor, operation.dtype,
                 contributions_, 0,
                 static_cast<int64_t>(PieceBytes(operation.receive_bytes, piece) / element),
                 operation.result + offset / element * SizeOf(ArithmeticOf(operation.dtype)));
    for (Operation::Receive& taken : receives) Taken(taken);
  }
  for (const Operation::Receive& receive : receives) {
    if (receive.next < receive.end) receive_is_blocked_[receive.from] = true;
  }
}

// Whom an operation that is not done waits for.
std::vector<Rank> ShmOperations::WaitedFor(const Operation& operation) {
  std::vector<Rank> ranks;
  for (const Operation::Receive& receive : operation.receives) {
    if (receive.next < receive.end && peers_->mailbox(receive.from).posted() <= receive.next) {
      ranks.push_back(receive.from);
    }
  }
  if (ranks.empty() && operation.next_send < operation.end_send) {
    const Occupant& occupant = occupants_[operation.next_send % Mailbox::kSlots];
    for (const Rank reader : occupant.readers) {
      if (peers_->mailbox(reader).taken(rank_) <= occupant.number) ranks.push_back(reader);
    }
  }
  return ranks;
}

absl::Status ShmOperations::WhyPeerLeft(Rank peer) {
  const DisconnectReason reason = peers_->mailbox(peer).disconnect_reason();
  return PeerDisconnected(rank_, peer, reason,
                          reason.kind == DisconnectReason::kNone
                              ? "its process has ended"
                              : "its last message in shared memory");
}

// The peers that have closed the plane although an operation that is not done needs them.
std::vector<Rank> ShmOperations::ClosedTooEarly(const Operation& operation) {
  std::vector<Rank> ranks;
  for (const Operation::Receive& receive : operation.receives) {
    if (receive.next < receive.end &&
        peers_->mailbox(receive.from).ClosedWithoutPosting(receive.next)) {
      ranks.push_back(receive.from);
    }
  }
  if (operation.next_send < operation.end_send) {
    const Occupant& occupant = occupants_[operation.next_send % Mailbox::kSlots];
    for (const Rank reader : occupant.readers) {
      if (peers_->mailbox(reader).ClosedWithoutTaking(rank_, occupant.number)) {
        ranks.push_back(reader);
      }
    }
  }
  return ranks;
}

void ShmOperations::BreakIfAPeerLeft() {
  for (const Rank peer : peers_->ranks()) {
    if (peer == rank_) continue;
    const DisconnectReason::Kind kind = peers_->mailbox(peer).disconnect_reason().kind;
    if (kind != DisconnectReason::kNone && kind != DisconnectReason::kClosed) {
      Break(WhyPeerLeft(peer));
    }
  }
}

}  // namespace optshard
