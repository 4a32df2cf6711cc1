// Has all owners of a job open a snapshot at the same step, while they step. No message is sent for
// it: the votes of the steps carry what is needed.
//
// Who wants a snapshot prepares it at every owner, and then opens it at every owner. The first
// owner that is between two calls of its trainer opens at its last finished step. Its next vote
// says so, and whoever sees that in the votes opens before the step is applied. An owner that is in
// a call waits: the votes open it, or the end of the call does. One that waits for the votes of a
// step, and is told that another owner has opened the snapshot, opens it, too: the other rank's
// trainer may wait for the snapshot before it votes.
//
// Why all open at the same step, k: who opened between two calls said so in the vote of the next
// one, and no owner gets beyond the state after k without that vote. Had another opened at an
// earlier step, then its vote would have opened it here, too. Who is told while it waits for the
// votes of the step after k, and after as many skipped calls, has the same: the other has not voted
// in that step yet, or is beyond it because it was refused, which changes nothing.
//
// A snapshot of a step that is still to come needs no vote: every owner opens it at the end of that
// step. An owner that is asked too late says so, and the snapshot is given up.
// (docs/decisions/0018-snapshots-agreed-by-votes.md)
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_AGREED_SNAPSHOTS_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_AGREED_SNAPSHOTS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/prepared_snapshot.h"
#include "server/shard/snapshot/snapshot_id.h"

namespace optshard {

// What a call of the trainer's does, in which all ranks vote.
enum class CallEffect {
  kSteps,    // once all have voted: to the next step, or to one more skipped call, or nothing
  kChanges,  // state or parameters, once all have voted, whatever the step is
  kReads,    // nothing changes, whatever the votes say: snapshots are opened meanwhile, too
};

// How long a snapshot is kept that is not opened, and then how long one that is not taken.
enum class SnapshotLife {
  kLimited,         // as long as Options::keep; who waits in Open or Take prolongs it
  kUntilForgotten,  // whoever prepares it calls Forget, whatever happens
};

// One owner's, in one generation. Thread-safe: one thread steps, any prepare and open. What is
// forgotten is destroyed without the lock.
class AgreedSnapshots {
 public:
  struct Options {
    // Errors as PrepareStoreSnapshot. Called by one thread at a time.
    std::function<absl::StatusOr<std::unique_ptr<PreparedSnapshot>>(const SnapshotContents&)>
        prepare;
    Rank rank = 0;  // for messages
    // How long one of limited life is kept. Afterwards the next call of anything here forgets it.
    absl::Duration keep = absl::Minutes(1);
    int most = 16;  // that are kept
    const Clock* clock = &Clock::Monotonic();
  };

  explicit AgreedSnapshots(Options options) : options_(std::move(options)) {}

  // --- Any thread. After End all have its reason.

  // Makes the memory ready, which may take long; no step waits for it. Does nothing where the id is
  // prepared already. With `at_step` it is opened when that step is finished, and at no other.
  //   INVALID_ARGUMENT    the id is 0
  //   RESOURCE_EXHAUSTED  the copies need more memory than snapshots may have, or too many are kept
  //   FAILED_PRECONDITION parameters are asked for, and the trainer has given no values yet
  //   ABORTED             that step is finished
  absl::Status Prepare(SnapshotId id, const SnapshotContents& contents,
                       SnapshotLife life = SnapshotLife::kLimited,
                       absl::optional<StepNumber> at_step = absl::nullopt);

  // Opens the snapshot, once all owners have prepared it, and returns whose state it has. It stays
  // here. Waits for a call of the trainer's that changes something, for the parameters' values, and
  // for memory that others have.
  //   ABORTED            it is not prepared here (any more), or could not be opened when the others
  //                      opened it, or as many as a vote can carry were opened since the last vote:
  //                      ask all owners for another one
  //   DEADLINE_EXCEEDED  what it waits for lasts longer than `patience`. The snapshot may be opened
  //                      all the same later: forget it
  // and a device's errors.
  absl::StatusOr<SnapshotMoment> Open(SnapshotId id, absl::Duration patience);

  // Likewise, and gives the snapshot away: once.
  absl::StatusOr<std::unique_ptr<ShardSnapshot>> Take(SnapshotId id, absl::Duration patience);

  // Another owner has opened it at `moment`: who waits in Open or Take follows it, as soon as this
  // owner waits for the votes of the step after that moment. Does nothing where it is not prepared.
  void OpenedElsewhere(SnapshotId id, const SnapshotMoment& moment);

  // Nobody wants it any more, here or elsewhere: also of one that was taken, as it gives the next
  // vote's place back. Does nothing where it is not known.
  void Forget(SnapshotId id);

  // Those whose life is over: their memory is free then.
  void ForgetOld();

  // --- The thread that steps.

  // Before anything else: what the owner has before its first call.
  void Begin(const BetweenCalls& now);

  // The owner votes in a call, and is in it from now on. Returns what the vote carries: what was
  // opened since the last one.
  SnapshotIds Vote(CallEffect effect);

  // The votes of all have come, and nothing was changed yet: opens what others have opened. Those
  // without ids may be left out.
  void TakeVotes(absl::Span<const SnapshotIds> votes);

  // The call, if there is one, has ended, and all it changed is changed.
  void EndCall(const BetweenCalls& now);

  // No call follows: ends all that is kept and all that waits, with this reason. The first counts.
  void End(const absl::Status& reason);

 private:
  enum class Phase {
    kPrepared,
    kWanted,  // and to be opened as soon as that can be
    kOpen,
    kMissed,  // it could not be opened when the others did, or at its step, or at all
  };

  enum class Call {
    kNone,     // or one that only reads
    kVotes,    // a step, of which not all votes have come
    kChanges,  // any other; or its votes have come
  };

  struct Entry {
    Phase phase = Phase::kPrepared;
    absl::Status why = absl::AbortedError("not tried");  // it could not be opened
    SnapshotLife life = SnapshotLife::kLimited;
    absl::optional<StepNumber> at_step;
    absl::optional<SnapshotMoment> elsewhere;  // where another owner has opened it
    absl::Time expires = absl::InfiniteFuture();
    std::unique_ptr<PreparedSnapshot> prepared;  // also once it is open
    std::unique_ptr<ShardSnapshot> snapshot;     // while it is open
    SnapshotMoment moment;                       // likewise
  };
  using Entries = std::map<SnapshotId, Entry>;

  struct Opened {
    SnapshotId id = 0;
    // Where it was taken: until then others may open it, and must learn of it.
    absl::Time is_wanted_until = absl::InfinitePast();
  };

  absl::StatusOr<Entry*> AwaitOpen(SnapshotId id, absl::Duration patience)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Entry*> Find(SnapshotId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prolong(Entry* entry, absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Between calls, one of `at_step`.
  void OpenAtItsStep(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it is open now.
  bool TryOpen(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Between calls, with room in the next vote, which then carries it.
  bool TryOpenFirst(SnapshotId id, Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the next vote can carry one more.
  bool MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is old, to be destroyed without the lock.
  Entries TakeOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveOpened(SnapshotId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether this owner has what another one has opened, and is not between two calls.
  bool MayFollow(const Entry& entry) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::string WhatIsAwaited(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex preparing_;  // held by who prepares
  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(preparing_);
  Call call_ ABSL_GUARDED_BY(mutex_) = Call::kNone;
  BetweenCalls now_ ABSL_GUARDED_BY(mutex_);  // since the last call
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<Opened> opened_ ABSL_GUARDED_BY(mutex_);  // since the last vote
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_AGREED_SNAPSHOTS_H_
