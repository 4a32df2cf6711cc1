#include "server/shard/snapshot/agreed_snapshots.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

// While the state is being replaced, or values are missing.
constexpr absl::Duration kPause = absl::Milliseconds(1);

}  // namespace

absl::Status AgreedSnapshots::Prepare(SnapshotId id, const SnapshotContents& contents,
                                      SnapshotLife life, absl::optional<StepNumber> at_step) {
  if (id == 0) return absl::InvalidArgumentError("a snapshot's id is not 0");
  absl::MutexLock preparing(&preparing_);
  {
    Entries old;
    absl::MutexLock lock(&mutex_);
    old = TakeOld();
    if (!ended_.ok()) return ended_;
    if (entries_.count(id) > 0) return absl::OkStatus();
    if (static_cast<int>(entries_.size()) >= options_.most) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%d snapshots of rank %d are prepared and not taken; ask again when "
                          "others have ended",
                          options_.most, options_.rank));
    }
  }
  absl::StatusOr<std::unique_ptr<PreparedSnapshot>> prepared = options_.prepare(contents);
  if (!prepared.ok()) return prepared.status();
  absl::MutexLock lock(&mutex_);
  if (!ended_.ok()) return ended_;
  // Also where it is the last one: since its end the state may have been replaced.
  if (at_step.has_value() && now_.finished >= *at_step) {
    return absl::AbortedError(
        absl::StrFormat("a snapshot of step %d is prepared too late: rank %d has finished step %d",
                        *at_step, options_.rank, now_.finished));
  }
  // Where an earlier one had the number, that is over.
  RemoveOpened(id);
  Entry& entry = entries_[id];
  entry.prepared = *std::move(prepared);
  entry.life = life;
  if (life == SnapshotLife::kLimited) entry.expires = options_.clock->Now() + options_.keep;
  entry.at_step = at_step;
  return absl::OkStatus();
}

absl::StatusOr<SnapshotMoment> AgreedSnapshots::Open(SnapshotId id, absl::Duration patience) {
  ForgetOld();
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Entry*> entry = AwaitOpen(id, patience);
  if (!entry.ok()) return entry.status();
  return (*entry)->moment;
}

absl::StatusOr<std::unique_ptr<ShardSnapshot>> AgreedSnapshots::Take(SnapshotId id,
                                                                     absl::Duration patience) {
  ForgetOld();
  Entries::node_type taken;
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Entry*> entry = AwaitOpen(id, patience);
  if (!entry.ok()) return entry.status();
  taken = entries_.extract(id);
  for (Opened& opened : opened_) {
    if (opened.id != id) continue;
    const bool is_limited = taken.mapped().life == SnapshotLife::kLimited;
    opened.is_wanted_until =
        is_limited ? options_.clock->Now() + options_.keep : absl::InfiniteFuture();
  }
  return std::move(taken.mapped().snapshot);
}

void AgreedSnapshots::OpenedElsewhere(SnapshotId id, const SnapshotMoment& moment) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(id);
  if (found != entries_.end()) found->second.elsewhere = moment;
}

void AgreedSnapshots::Forget(SnapshotId id) {
  Entries::node_type entry;
  absl::MutexLock lock(&mutex_);
  entry = entries_.extract(id);
  RemoveOpened(id);
}

void AgreedSnapshots::ForgetOld() {
  Entries old;
  absl::MutexLock lock(&mutex_);
  old = TakeOld();
}

void AgreedSnapshots::Begin(const BetweenCalls& now) {
  absl::MutexLock lock(&mutex_);
  now_ = now;
}

SnapshotIds AgreedSnapshots::Vote(CallEffect effect) {
  SnapshotIds ids{};
  absl::MutexLock lock(&mutex_);
  if (effect == CallEffect::kSteps) call_ = Call::kVotes;
  if (effect == CallEffect::kChanges) call_ = Call::kChanges;
  for (size_t i = 0; i < opened_.size(); ++i) ids[i] = opened_[i].id;
  opened_.clear();
  return ids;
}

void AgreedSnapshots::TakeVotes(absl::Span<const SnapshotIds> votes) {
  absl::MutexLock lock(&mutex_);
  if (call_ == Call::kVotes) call_ = Call::kChanges;
  for (const SnapshotIds& ids : votes) {
    for (const SnapshotId id : ids) {
      const auto found = entries_.find(id);
      if (found == entries_.end() || found->second.phase == Phase::kOpen) continue;
      if (found->second.at_step.has_value()) continue;
      if (!TryOpen(&found->second)) found->second.phase = Phase::kMissed;
    }
  }
}

void AgreedSnapshots::EndCall(const BetweenCalls& now) {
  Entries old;
  absl::MutexLock lock(&mutex_);
  call_ = Call::kNone;
  now_ = now;
  if (entries_.empty()) return;
  old = TakeOld();
  for (auto& [id, entry] : entries_) {
    if (entry.at_step.has_value()) {
      OpenAtItsStep(&entry);
    } else if (entry.phase == Phase::kWanted && MakeRoom()) {
      TryOpenFirst(id, &entry);
    }
  }
}

void AgreedSnapshots::End(const absl::Status& reason) {
  Entries ended;
  absl::MutexLock lock(&mutex_);
  ended_.Update(reason);
  ended.swap(entries_);
}

absl::StatusOr<AgreedSnapshots::Entry*> AgreedSnapshots::Find(SnapshotId id) {
  if (!ended_.ok()) return ended_;
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return absl::AbortedError(absl::StrFormat(
        "rank %d has not prepared snapshot %016x, or has given it away or forgotten it; ask all "
        "owners for another one",
        options_.rank, id));
  }
  return &found->second;
}

absl::StatusOr<AgreedSnapshots::Entry*> AgreedSnapshots::AwaitOpen(SnapshotId id,
                                                                   absl::Duration patience) {
  const absl::Time deadline = options_.clock->Now() + patience;
  while (true) {
    absl::StatusOr<Entry*> entry = Find(id);
    if (!entry.ok() || (*entry)->phase == Phase::kOpen) return entry;
    if ((*entry)->phase == Phase::kMissed) {
      if (!MayOpenLater((*entry)->why)) return (*entry)->why;
      return absl::AbortedError(absl::StrFormat(
          "the state of rank %d was being replaced, or its step over, or there was no memory, when "
          "others opened snapshot %016x; ask all owners for another one",
          options_.rank, id));
    }
    const bool is_of_any_step = !(*entry)->at_step.has_value();
    const bool is_first = is_of_any_step && call_ == Call::kNone;
    if (is_first && !MakeRoom()) {
      (*entry)->phase = Phase::kPrepared;
      return absl::AbortedError(absl::StrFormat(
          "rank %d has opened %d snapshots since its last step, as many as a vote can carry: "
          "snapshot %016x is not open; ask all owners for another one after the next step",
          options_.rank, opened_.size(), id));
    }
    (*entry)->phase = Phase::kWanted;
    if (is_first && TryOpenFirst(id, *entry)) return entry;
    const bool follows = MayFollow(**entry);
    if (follows && TryOpen(*entry)) return entry;
    const absl::Duration left = deadline - options_.clock->Now();
    Prolong(*entry, std::max(left, absl::ZeroDuration()));
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("rank %d: %s for %s: snapshot %016x is not open", options_.rank,
                          WhatIsAwaited(**entry), absl::FormatDuration(patience), id));
    }
    const auto has_changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      const auto found = entries_.find(id);
      return found == entries_.end() || found->second.phase != Phase::kWanted || !ended_.ok() ||
             (is_of_any_step && (call_ == Call::kNone) != is_first) ||
             MayFollow(found->second) != follows;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&has_changed),
                            is_first || follows ? std::min(left, kPause) : left);
  }
}

bool AgreedSnapshots::MayFollow(const Entry& entry) const {
  return call_ == Call::kVotes && !entry.at_step.has_value() && entry.elsewhere.has_value() &&
         entry.elsewhere->step == now_.finished && entry.elsewhere->skipped == now_.skipped;
}

std::string AgreedSnapshots::WhatIsAwaited(const Entry& entry) const {
  if (entry.at_step.has_value()) {
    return absl::StrFormat("step %d was awaited, and step %d is the last one", *entry.at_step,
                           now_.finished);
  }
  if (call_ != Call::kNone) return "a step, or another call, was under way";
  if (!now_.has_values) return "the parameters had no values yet (no rank steps before that)";
  if (absl::IsResourceExhausted(entry.why)) return std::string(entry.why.message());
  return "the state was being replaced";
}

void AgreedSnapshots::Prolong(Entry* entry, absl::Duration patience) {
  if (entry->life == SnapshotLife::kUntilForgotten) return;
  entry->expires = std::max(entry->expires, options_.clock->Now() + patience + options_.keep);
}

void AgreedSnapshots::OpenAtItsStep(Entry* entry) {
  const bool is_done = entry->phase == Phase::kOpen || entry->phase == Phase::kMissed;
  if (is_done || now_.finished < *entry->at_step) return;
  if (now_.finished > *entry->at_step || !TryOpen(entry)) entry->phase = Phase::kMissed;
}

bool AgreedSnapshots::TryOpen(Entry* entry) {
  if (!now_.has_values) return false;
  absl::StatusOr<std::unique_ptr<ShardSnapshot>> opened = entry->prepared->TryOpen(now_);
  entry->why = opened.status();
  if (!opened.ok()) {
    if (!MayOpenLater(opened.status())) entry->phase = Phase::kMissed;
    return false;
  }
  entry->snapshot = *std::move(opened);
  entry->moment = entry->snapshot->moment();
  entry->moment.skipped = now_.skipped;
  entry->phase = Phase::kOpen;
  if (entry->life == SnapshotLife::kLimited) {
    entry->expires = options_.clock->Now() + options_.keep;
  }
  return true;
}

bool AgreedSnapshots::TryOpenFirst(SnapshotId id, Entry* entry) {
  if (!TryOpen(entry)) return false;
  opened_.push_back({id, absl::InfinitePast()});
  return true;
}

bool AgreedSnapshots::MakeRoom() {
  if (opened_.size() < SnapshotIds().size()) return true;
  // Where nobody votes for long: one that is done with gives up its place.
  const absl::Time now = options_.clock->Now();
  const auto done = std::find_if(
      opened_.begin(), opened_.end(), [&](const Opened& each) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return entries_.count(each.id) == 0 && each.is_wanted_until <= now;
      });
  if (done == opened_.end()) return false;
  opened_.erase(done);
  return true;
}

void AgreedSnapshots::RemoveOpened(SnapshotId id) {
  opened_.erase(std::remove_if(opened_.begin(), opened_.end(),
                               [id](const Opened& each) { return each.id == id; }),
                opened_.end());
}

AgreedSnapshots::Entries AgreedSnapshots::TakeOld() {
  const absl::Time now = options_.clock->Now();
  Entries old;
  for (auto each = entries_.begin(); each != entries_.end();) {
    const auto next = std::next(each);
    if (each->second.expires <= now) old.insert(entries_.extract(each));
    each = next;
  }
  return old;
}

}  // namespace optshard
