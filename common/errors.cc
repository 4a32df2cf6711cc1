#include "common/errors.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/incarnation.h"

namespace optshard::errors {
namespace {

constexpr char kPayloadUrl[] = "optshard.errors";

struct Kind {
  absl::string_view name;  // in payloads: part of the protocol
  absl::StatusCode code;
};

constexpr Kind kPeerLost = {"peer_lost", absl::StatusCode::kUnavailable};
constexpr Kind kPeersTimedOut = {"peers_timed_out", absl::StatusCode::kDeadlineExceeded};
constexpr Kind kTrainerGone = {"trainer_gone", absl::StatusCode::kUnavailable};
constexpr Kind kOwnerAway = {"owner_away", absl::StatusCode::kUnavailable};
constexpr Kind kTornStep = {"torn_step", absl::StatusCode::kDataLoss};
constexpr Kind kStepInDoubt = {"step_in_doubt", absl::StatusCode::kDataLoss};
constexpr Kind kStaleGeneration = {"stale_generation", absl::StatusCode::kFailedPrecondition};
constexpr Kind kStaleIncarnation = {"stale_incarnation", absl::StatusCode::kFailedPrecondition};
constexpr Kind kRanksDisagree = {"ranks_disagree", absl::StatusCode::kInvalidArgument};

constexpr const Kind* kKinds[] = {&kPeerLost,        &kPeersTimedOut,    &kTrainerGone,
                                  &kOwnerAway,       &kTornStep,         &kStepInDoubt,
                                  &kStaleGeneration, &kStaleIncarnation, &kRanksDisagree};

// "kind:rank,rank,...", such as "peer_lost:2".
struct Payload {
  const Kind* kind = nullptr;
  std::vector<Rank> ranks;
};

std::string Encode(const Payload& payload) {
  return absl::StrCat(payload.kind->name, ":", absl::StrJoin(payload.ranks, ","));
}

absl::optional<Payload> Decode(absl::string_view encoded) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(encoded, absl::MaxSplits(':', 1));
  Payload payload;
  for (const Kind* kind : kKinds) {
    if (kind->name == parts.first) payload.kind = kind;
  }
  if (payload.kind == nullptr) return absl::nullopt;
  for (absl::string_view text : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    Rank rank;
    if (!absl::SimpleAtoi(text, &rank) || rank < 0) return absl::nullopt;
    payload.ranks.push_back(rank);
  }
  // Only what Encode writes is one: no blanks, signs, empty items.
  if (Encode(payload) != encoded) return absl::nullopt;
  return payload;
}

// The status's payload, where it has a valid one that goes with its code.
absl::optional<Payload> PayloadOf(const absl::Status& status) {
  const absl::optional<absl::Cord> encoded = status.GetPayload(kPayloadUrl);
  if (!encoded.has_value()) return absl::nullopt;
  absl::optional<Payload> payload = Decode(std::string(*encoded));
  if (!payload.has_value() || payload->kind->code != status.code()) return absl::nullopt;
  return payload;
}

bool Is(const absl::Status& status, const Kind& kind) {
  const absl::optional<Payload> payload = PayloadOf(status);
  return payload.has_value() && payload->kind == &kind;
}

absl::Status Make(const Kind& kind, std::vector<Rank> ranks, absl::string_view message) {
  absl::Status status(kind.code, message);
  status.SetPayload(kPayloadUrl, absl::Cord(Encode({&kind, std::move(ranks)})));
  return status;
}

// A message stays readable, and short enough for a transport.
constexpr size_t kMostRanksNamed = 16;

// "rank 1", "ranks 1, 3", "ranks 0, 1, ..., 15 and 9984 more".
std::string Named(const std::vector<Rank>& ranks) {
  const size_t named = std::min(ranks.size(), kMostRanksNamed);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "));
  if (named < ranks.size()) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace

absl::Status PeerLost(Rank rank, absl::string_view how_known) {
  return Make(kPeerLost, {rank}, absl::StrCat("rank ", rank, " is lost: ", how_known));
}

absl::Status PeersTimedOut(const std::vector<Rank>& waited_for, absl::string_view what) {
  return Make(kPeersTimedOut, waited_for,
              absl::StrCat("deadline reached waiting for ", Named(waited_for), ": ", what));
}

absl::Status TrainerGone(const std::vector<Rank>& ranks, absl::string_view how_known) {
  return Make(kTrainerGone, ranks,
              absl::StrCat("the trainer of ", Named(ranks), " is gone: ", how_known));
}

absl::Status OwnerAway(const std::vector<Rank>& ranks, absl::string_view how_known) {
  return Make(kOwnerAway, ranks,
              absl::StrCat("the shard owner of ", Named(ranks), " is away: ", how_known,
                           "; call again with the same gradients once it is back"));
}

absl::Status TornStep(StepNumber step, absl::string_view cause) {
  return TornStep(step, absl::UnknownError(cause));
}

absl::Status TornStep(StepNumber step, const absl::Status& cause) {
  if (IsTornStep(cause)) return cause;
  return Make(kTornStep, RanksOf(cause),
              absl::StrCat("step ", step, " is torn, parameters and state are those of no step: ",
                           cause.message(), "; restore from a checkpoint of an earlier step"));
}

absl::Status TornState(StepNumber step, const std::vector<Rank>& ranks, absl::string_view cause) {
  return Make(kTornStep, ranks,
              absl::StrCat("step ", step, " failed: the parameters are still those of step ",
                           step - 1, " on all ranks and can be saved, but the optimizer state is ",
                           "that of no step: ", cause,
                           "; make the optimizer anew, or restore from a checkpoint"));
}

absl::Status StepInDoubt(StepNumber step, absl::string_view cause) {
  return StepInDoubt(step, absl::UnknownError(cause));
}

absl::Status StepInDoubt(StepNumber step, const absl::Status& cause) {
  return Make(
      kStepInDoubt, RanksOf(cause),
      absl::StrCat("step ", step, " is in doubt, not applied here but perhaps by other ranks: ",
                   cause.message(), "; restore all ranks from one checkpoint"));
}

absl::Status StaleGeneration(Generation got, Generation current) {
  return Make(kStaleGeneration, {},
              absl::StrCat("call of generation ", got, ", the current one is ", current,
                           ": nothing was changed; fetch the current plan"));
}

absl::Status StaleIncarnation(Rank rank, Incarnation got, Incarnation current) {
  const std::string call =
      absl::StrCat("call of incarnation ", IncarnationText(got), " of rank ", rank, ", ");
  const std::string end = ": nothing was changed; ";
  return Make(kStaleIncarnation, {rank},
              current == 0
                  ? absl::StrCat(call, "but nobody of this rank is in", end,
                                 "this process is not part of the job")
                  : absl::StrCat(call, "the current one is ", IncarnationText(current), end,
                                 "a successor has taken this rank, so this process must end"));
}

absl::Status RanksDisagree(const std::vector<Rank>& ranks, absl::string_view difference) {
  return Make(kRanksDisagree, ranks,
              absl::StrCat(Named(ranks), ranks.size() == 1 ? " differs" : " differ",
                           " from the others: ", difference));
}

bool IsPeerLost(const absl::Status& status) { return Is(status, kPeerLost); }
bool IsPeersTimedOut(const absl::Status& status) { return Is(status, kPeersTimedOut); }
bool IsTrainerGone(const absl::Status& status) { return Is(status, kTrainerGone); }
bool IsOwnerAway(const absl::Status& status) { return Is(status, kOwnerAway); }
bool IsTornStep(const absl::Status& status) { return Is(status, kTornStep); }
bool IsStepInDoubt(const absl::Status& status) { return Is(status, kStepInDoubt); }
bool IsStaleGeneration(const absl::Status& status) { return Is(status, kStaleGeneration); }
bool IsStaleIncarnation(const absl::Status& status) { return Is(status, kStaleIncarnation); }
bool IsRanksDisagree(const absl::Status& status) { return Is(status, kRanksDisagree); }

std::vector<Rank> RanksOf(const absl::Status& status) {
  absl::optional<Payload> payload = PayloadOf(status);
  return payload.has_value() ? std::move(payload->ranks) : std::vector<Rank>();
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

std::string EncodePayload(const absl::Status& status, size_t most_bytes) {
  const absl::optional<Payload> payload = PayloadOf(status);
  if (!payload.has_value()) return "";
  std::string encoded = Encode(*payload);
  if (encoded.size() <= most_bytes) return encoded;
  // Up to the last comma, or else the colon, at which what comes before still fits.
  const size_t comma = encoded.rfind(',', most_bytes);
  encoded.resize(comma != std::string::npos ? comma : encoded.find(':') + 1);
  return encoded;
}

void AttachPayload(absl::Status& status, absl::string_view encoded) {
  const absl::optional<Payload> payload = Decode(encoded);
  if (!payload.has_value() || payload->kind->code != status.code()) return;
  status.SetPayload(kPayloadUrl, absl::Cord(encoded));
}

}  // namespace optshard::errors
