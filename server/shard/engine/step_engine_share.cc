// What the ranks give each other between steps.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "server/shard/engine/step_engine.h"

namespace optshard {
namespace {

absl::Status CheckShare(const ByteShare& share, int world_size) {
  const auto bytes = static_cast<int64_t>(share.bytes.size());
  const bool all_give = share.from == kFromEveryRank;
  if (bytes > kMaxShareBytes || share.from < kFromEveryRank || share.from >= world_size ||
      (all_give && bytes % world_size != 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes of rank %d are to be shared by %d ranks; expected at most %d, of a rank of them, "
        "or as many of each",
        bytes, share.from, world_size, kMaxShareBytes));
  }
  return absl::OkStatus();
}

CommitCall CallOf(const ByteShare& share) {
  return share.call == ShareCall::kConsolidate ? CommitCall::kConsolidate : CommitCall::kLoad;
}

}  // namespace

StepEngine::Result StepEngine::ShareBytes(const ByteShare& share, absl::Duration timeout) {
  const Call call(this);
  const absl::Time deadline = options_.clock->Now() + timeout;
  absl::optional<Result> refused =
      AgreeOnCall(CallOf(share), share.subject(), CheckShare(share, options_.world_size()),
                  StepOutcome::kNotApplied, deadline);
  if (refused.has_value()) return *std::move(refused);
  absl::Status moved = MoveBytes(share, deadline);
  if (!moved.ok()) return Failed(std::move(moved), StepOutcome::kNotApplied);
  options_.timeline->DropStep();
  Result result;
  result.info.step = finished_;
  return result;
}

absl::Status StepEngine::MoveBytes(const ByteShare& share, absl::Time deadline) {
  if (options_.world_size() == 1 || share.bytes.empty()) return absl::OkStatus();
  if (share.from == kFromEveryRank) {
    const int64_t bytes = share.bytes_per_rank(options_.world_size());
    const char* const own = share.bytes.data() + options_.rank * bytes;
    std::vector<char> gathered;
    absl::Status status = AllGather(kSharedBytes, {own, own + bytes}, &gathered, deadline);
    if (status.ok()) std::copy(gathered.begin(), gathered.end(), share.bytes.begin());
    return status;
  }
  absl::StatusOr<std::unique_ptr<Ticket>> ticket = options_.plane->Publish(
      TagOf(options_, record_.step, StepPhase::kControl, kSharedBytes), ExecutionContext(),
      share.from, all_ranks_, share.bytes.data(), share.bytes.size());
  if (!ticket.ok()) return ticket.status();
  return (*ticket)->Wait(deadline);
}

}  // namespace optshard
