// All processes below this one, however they came there.
#ifndef OPTSHARD_COMMON_PROCESS_DESCENDANTS_H_
#define OPTSHARD_COMMON_PROCESS_DESCENDANTS_H_

#include "absl/time/time.h"

namespace optshard {

// From here on a process whose parent ends becomes a child of this one where it was below it, so
// that also daemons and processes in sessions of their own are found. It is not inherited by
// children.
void AdoptOrphans();

// Sends SIGKILL to every process below this one that lives, and returns how many there were. One
// that is being forked meanwhile may be missed: call it until it returns 0. Zombies do not count.
int KillDescendants();

// Calls it until none is left, and reaps all. False where some are left at the deadline, in the
// time of Clock::Monotonic(). For a process that waits for no child in another way.
bool KillAndReapDescendants(absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PROCESS_DESCENDANTS_H_
