// The errors that optshard's own code acts upon, made by factories and matched by predicates, never
// by message text. Each is an absl::Status whose payload carries the kind and the ranks concerned,
// so that both survive gRPC (common/rpc/status_rpc.h). All functions are thread-safe.
#ifndef OPTSHARD_COMMON_ERRORS_H_
#define OPTSHARD_COMMON_ERRORS_H_

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/ids.h"

namespace optshard::errors {

// A rank is gone: killed, stopped past its lease, or unreachable. UNAVAILABLE.
absl::Status PeerLost(Rank rank, absl::string_view how_known);

// A wait reached its deadline; `waited_for` are the ranks that did not come. DEADLINE_EXCEEDED.
absl::Status PeersTimedOut(const std::vector<Rank>& waited_for, absl::string_view what);

// The trainers of these ranks are gone, and their successors have not come yet; their shard owners
// live, and nothing is lost. UNAVAILABLE.
absl::Status TrainerGone(const std::vector<Rank>& ranks, absl::string_view how_known);

// The shard owners of these ranks are gone, or have lost others, and are started again over the
// state that they had. A step that was under way was applied by all or by none: the same call made
// again, with the same gradients, finds out and goes on. UNAVAILABLE.
absl::Status OwnerAway(const std::vector<Rank>& ranks, absl::string_view how_known);

// The step was being applied when a rank was lost: the state is not that of any step. DATA_LOSS.
// Names the ranks that `cause` names; a cause that is IsTornStep itself is returned as it is.
absl::Status TornStep(StepNumber step, absl::string_view cause);
absl::Status TornStep(StepNumber step, const absl::Status& cause);

// As TornStep, which it is for IsTornStep, but all parameters are those of the step before: only
// the optimizer state is that of no step. `ranks` are those on which the update failed.
absl::Status TornState(StepNumber step, const std::vector<Rank>& ranks, absl::string_view cause);

// The step may or may not have been applied by others; this rank has not applied it. DATA_LOSS.
// Names the ranks that `cause` names.
absl::Status StepInDoubt(StepNumber step, absl::string_view cause);
absl::Status StepInDoubt(StepNumber step, const absl::Status& cause);

// A call of an old generation or incarnation: nothing changed. FAILED_PRECONDITION. `current` is 0
// where nobody is in under that rank.
absl::Status StaleGeneration(Generation got, Generation current);
absl::Status StaleIncarnation(Rank rank, Incarnation got, Incarnation current);

// Ranks disagree about something all must agree on (parameter lists, options, gradients,
// hyperparameters); `ranks` are those that differ. INVALID_ARGUMENT.
absl::Status RanksDisagree(const std::vector<Rank>& ranks, absl::string_view difference);

bool IsPeerLost(const absl::Status& status);
bool IsPeersTimedOut(const absl::Status& status);
bool IsTrainerGone(const absl::Status& status);
bool IsOwnerAway(const absl::Status& status);
bool IsTornStep(const absl::Status& status);
bool IsStepInDoubt(const absl::Status& status);
bool IsStaleGeneration(const absl::Status& status);
bool IsStaleIncarnation(const absl::Status& status);
bool IsRanksDisagree(const absl::Status& status);

// The ranks a status names (lost, late or differing); empty where it names none.
std::vector<Rank> RanksOf(const absl::Status& status);

// `status` with "context: " before its message; code and payload stay. OK stays OK.
absl::Status WithContext(const absl::Status& status, absl::string_view context);

// The payload as one opaque string ("" for none), and back: for transports of statuses. Where that
// has more than `most_bytes`, the last of the ranks are left out.
std::string EncodePayload(const absl::Status& status,
                          size_t most_bytes = std::numeric_limits<size_t>::max());
void AttachPayload(absl::Status& status, absl::string_view encoded);

}  // namespace optshard::errors

#endif  // OPTSHARD_COMMON_ERRORS_H_
