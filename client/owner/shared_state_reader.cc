#include "client/owner/shared_state_reader.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/owner/parameter_state.h"
#include "common/byte_share.h"
#include "server/shard/state/state_access.h"

namespace optshard {
namespace {

// A window begins with what kept its owner from filling it: an absl::StatusCode, 0 for nothing.
constexpr int64_t kHeadBytes = 16;
constexpr int64_t kAlignment = 16;

}  // namespace

absl::Status SharedStateReader::ReadOwn(const StatePiece& piece, int64_t first, int64_t elements,
                                        void* to) {
  const RankExchange::Options& options = exchange_.options();
  const absl::StatusOr<StateAccess*> state = options.owner->state(options.timeout);
  if (!state.ok()) return state.status();
  return ReadElements(**state, piece.parameter, piece.slot, piece.offset_elements + first,
                      at::from_blob(to, {elements}, at::TensorOptions(piece.type)));
}

absl::Status SharedStateReader::Read(Rank from, Rank to, absl::Span<const StatePiece> pieces) {
  const RankExchange::Options& options = exchange_.options();
  if (from == to || options.world_size == 1) {
    if (options.rank != from) return absl::OkStatus();
    for (const StatePiece& piece : pieces) {
      if (own_.ok()) own_ = ReadOwn(piece, 0, piece.elements, piece.to);
    }
    return absl::OkStatus();
  }
  std::vector<Run> runs;
  int64_t used = kHeadBytes;
  for (const StatePiece& piece : pieces) {
    const auto size = static_cast<int64_t>(c10::elementSize(piece.type));
    for (int64_t first = 0; first < piece.elements;) {
      const int64_t elements = std::min((kMaxShareBytes - used) / size, piece.elements - first);
      if (elements == 0) {
        absl::Status shared = ShareWindow(from, to, runs, used);
        if (!shared.ok()) return shared;
        runs.clear();
        used = kHeadBytes;
        continue;
      }
      runs.push_back({&piece, first, elements, used});
      first += elements;
      used += (elements * size + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  return runs.empty() ? absl::OkStatus() : ShareWindow(from, to, runs, used);
}

absl::Status SharedStateReader::ShareWindow(Rank from, Rank to, absl::Span<const Run> runs,
                                            int64_t bytes) {
  const RankExchange::Options& options = exchange_.options();
  window_.resize(kMaxShareBytes);
  absl::Status own;
  if (options.rank == from) {
    for (const Run& run : runs) {
      if (own.ok()) own = ReadOwn(*run.piece, run.first, run.elements, window_.data() + run.at);
    }
    const auto code = static_cast<int64_t>(own.code());
    std::memcpy(window_.data(), &code, sizeof(code));
  }
  absl::Status shared = exchange_.Share(from, absl::MakeSpan(window_.data(), bytes));
  if (!shared.ok()) return shared;
  int64_t code = 0;
  std::memcpy(&code, window_.data(), sizeof(code));
  if (code != 0) {
    // All end alike, also where the call begins again after such an error.
    absl::Status failed = exchange_.Agree(own);
    if (!failed.ok()) return failed;
    return absl::InternalError(absl::StrFormat(
        "rank %d sends no state, with code %d, and says that nothing failed", from, code));
  }
  if (to != kFromEveryRank && to != options.rank) return absl::OkStatus();
  for (const Run& run : runs) {
    const auto size = static_cast<int64_t>(c10::elementSize(run.piece->type));
    std::memcpy(static_cast<char*>(run.piece->to) + run.first * size, window_.data() + run.at,
                run.elements * size);
  }
  return absl::OkStatus();
}

}  // namespace optshard
