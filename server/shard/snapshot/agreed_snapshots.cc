#include "server/shard/snapshot/agreed_snapshots.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

// While the state is being replaced, or the next vote is full.
constexpr absl::Duration kPause = absl::Milliseconds(1);

}  // namespace

absl::Status AgreedSnapshots::Prepare(SnapshotId id, const SnapshotContents& contents) {
  if (id == 0) return absl::InvalidArgumentError("a snapshot's id is not 0");
  absl::MutexLock preparing(&preparing_);
  {
    absl::MutexLock lock(&mutex_);
    ForgetOld();
    if (!ended_.ok()) return ended_;
    if (entries_.count(id) > 0) return absl::OkStatus();
    if (static_cast<int>(entries_.size()) >= options_.most) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%d snapshots of rank %d are prepared and not taken; ask again in %s",
                          options_.most, options_.rank, absl::FormatDuration(options_.keep)));
    }
  }
  absl::StatusOr<std::unique_ptr<PreparedSnapshot>> prepared = options_.prepare(contents);
  if (!prepared.ok()) return prepared.status();
  absl::MutexLock lock(&mutex_);
  if (!ended_.ok()) return ended_;
  // Where an earlier one had the number, that is over.
  opened_.erase(std::remove(opened_.begin(), opened_.end(), id), opened_.end());
  Entry& entry = entries_[id];
  entry.prepared = *std::move(prepared);
  entry.expires = options_.clock->Now() + options_.keep;
  return absl::OkStatus();
}

absl::StatusOr<StepNumber> AgreedSnapshots::Open(SnapshotId id, absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Entry*> entry = AwaitOpen(id, patience);
  if (!entry.ok()) return entry.status();
  return (*entry)->step;
}

absl::StatusOr<std::unique_ptr<ShardSnapshot>> AgreedSnapshots::Take(SnapshotId id,
                                                                     absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Entry*> entry = AwaitOpen(id, patience);
  if (!entry.ok()) return entry.status();
  std::unique_ptr<ShardSnapshot> snapshot = std::move((*entry)->snapshot);
  entries_.erase(id);
  return snapshot;
}

void AgreedSnapshots::Forget(SnapshotId id) {
  std::map<SnapshotId, Entry>::node_type entry;  // its memory is given back without the lock
  absl::MutexLock lock(&mutex_);
  entry = entries_.extract(id);
}

SnapshotIds AgreedSnapshots::Vote(CallEffect effect) {
  SnapshotIds ids{};
  absl::MutexLock lock(&mutex_);
  in_call_ = in_call_ || effect == CallEffect::kChanges;
  std::copy(opened_.begin(), opened_.end(), ids.begin());
  opened_.clear();
  return ids;
}

void AgreedSnapshots::TakeVote(const SnapshotIds& ids) {
  if (ids == SnapshotIds{}) return;
  absl::MutexLock lock(&mutex_);
  for (const SnapshotId id : ids) {
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second.phase == Phase::kOpen) continue;
    if (!TryOpen(&found->second)) found->second.phase = Phase::kMissed;
  }
}

void AgreedSnapshots::EndCall() {
  absl::MutexLock lock(&mutex_);
  in_call_ = false;
  if (entries_.empty()) return;
  ForgetOld();
  for (auto& [id, entry] : entries_) {
    if (entry.phase == Phase::kWanted) TryOpenFirst(id, &entry);
  }
}

void AgreedSnapshots::End(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  ended_.Update(reason);
  entries_.clear();
}

absl::StatusOr<AgreedSnapshots::Entry*> AgreedSnapshots::Find(SnapshotId id) {
  ForgetOld();
  if (!ended_.ok()) return ended_;
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return absl::AbortedError(absl::StrFormat(
        "rank %d has not prepared snapshot %016x, or has given it away, or nobody has opened it "
        "for %s; ask all owners for another one",
        options_.rank, id, absl::FormatDuration(options_.keep)));
  }
  return &found->second;
}

absl::StatusOr<AgreedSnapshots::Entry*> AgreedSnapshots::AwaitOpen(SnapshotId id,
                                                                   absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    absl::StatusOr<Entry*> entry = Find(id);
    if (!entry.ok() || (*entry)->phase == Phase::kOpen) return entry;
    if ((*entry)->phase == Phase::kMissed) {
      return absl::AbortedError(absl::StrFormat(
          "the state of rank %d was being replaced when others opened snapshot %016x; ask all "
          "owners for another one",
          options_.rank, id));
    }
    (*entry)->phase = Phase::kWanted;
    if (!in_call_ && TryOpenFirst(id, *entry)) return entry;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "rank %d was in a step, or its state being replaced, for %s: snapshot %016x is not open",
          options_.rank, absl::FormatDuration(patience), id));
    }
    const bool waits_for_call = in_call_;
    const auto has_changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      const auto found = entries_.find(id);
      return found == entries_.end() || found->second.phase != Phase::kWanted || !ended_.ok() ||
             in_call_ != waits_for_call;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&has_changed),
                            waits_for_call ? left : std::min(left, kPause));
  }
}

bool AgreedSnapshots::TryOpen(Entry* entry) {
  entry->snapshot = entry->prepared->TryOpen();
  if (entry->snapshot == nullptr) return false;
  entry->step = entry->snapshot->step();
  entry->prepared.reset();
  entry->phase = Phase::kOpen;
  entry->expires = options_.clock->Now() + options_.keep;
  return true;
}

bool AgreedSnapshots::TryOpenFirst(SnapshotId id, Entry* entry) {
  // Where nobody votes for long: one that is done with gives up its place.
  if (opened_.size() == SnapshotIds().size()) {
    const auto done = std::find_if(opened_.begin(), opened_.end(),
                                   [&](SnapshotId each) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
                                     return entries_.count(each) == 0;
                                   });
    if (done == opened_.end()) return false;
    opened_.erase(done);
  }
  if (!TryOpen(entry)) return false;
  opened_.push_back(id);
  return true;
}

void AgreedSnapshots::ForgetOld() {
  const absl::Time now = options_.clock->Now();
  for (auto each = entries_.begin(); each != entries_.end();) {
    each = each->second.expires <= now ? entries_.erase(each) : std::next(each);
  }
}

}  // namespace optshard
