// State that lies on a device, as the host reads and writes it.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/shard/state/device_slot_memory.h"
#include "server/shard/state/shard_store.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

// Codes, or doubles at most, and behind them scales.
constexpr int64_t kElementsAtOnce = 64 * kCodeGrid;
constexpr absl::Duration kLongestRead = absl::Seconds(10);
constexpr absl::Duration kLongestWrite = absl::Minutes(1);
constexpr size_t kScalesAt = DeviceAccess::kWindowBytes / 2;
static_assert(kElementsAtOnce * sizeof(double) <= kScalesAt, "the window holds them");

std::vector<DeviceAccess::Range> RangesOf(const SlotArray& array, int64_t elements) {
  std::vector<DeviceAccess::Range> ranges;
  for (const SlotBytes& part : BytesOf(array, elements)) {
    ranges.push_back({part.data, ranges.empty() ? 0 : kScalesAt, part.bytes});
  }
  return ranges;
}

// The array as it is in the window.
SlotArray InWindow(const SlotArray& array, char* window) {
  if (!array.is_coded()) return Buffer(window, array.dtype());
  CodedArray coded = array.coded();
  coded.codes = reinterpret_cast<uint8_t*>(window);
  coded.scales = window + kScalesAt;
  return coded;
}

}  // namespace

absl::StatusOr<absl::optional<StepNumber>> ShardStore::TryReadOnDevice(
    int parameter, int slot, int64_t offset_elements, absl::Span<double> out) const {
  const absl::optional<StepNumber> again;
  const absl::optional<uint64_t> version = device_access_->version();
  if (!version.has_value()) return again;
  const absl::Time deadline = Clock::Monotonic().Now() + kLongestRead;
  const int64_t end = offset_elements + static_cast<int64_t>(out.size());
  // Before it reads: what has another number afterwards has another version, too.
  absl::optional<StepNumber> step;
  std::vector<const Piece*> pieces;
  for (const Piece& piece : PiecesFrom(parameter, slot, offset_elements)) {
    if (piece.parameter_offset >= end) break;
    const ShardLedger::Version& written = ledger_->version(piece.own);
    // Odd where another store goes on with the memory.
    if (written.sequence.load(std::memory_order_acquire) % 2 != 0) return again;
    const StepNumber of_piece = written.step.load(std::memory_order_relaxed);
    if (step.has_value() && *step != of_piece) return again;
    step = of_piece;
    pieces.push_back(&piece);
  }
  for (const Piece* piece : pieces) {
    const int64_t from = std::max(offset_elements, piece->parameter_offset);
    const int64_t to = std::min(end, piece->parameter_offset + piece->elements);
    absl::StatusOr<bool> read =
        TryReadPiece(*version, *piece, slot, from - piece->parameter_offset, deadline,
                     out.subspan(from - offset_elements, to - from));
    if (!read.ok()) return read.status();
    if (!*read) return again;
  }
  if (!step.has_value()) step = ledger_->counts_version().step.load(std::memory_order_relaxed);
  return step;
}

absl::StatusOr<bool> ShardStore::TryReadPiece(uint64_t version, const Piece& piece, int slot,
                                              int64_t within, absl::Time deadline,
                                              absl::Span<double> out) const {
  const State& state = own_[piece.own].states[piece.span];
  if (slot == kCorrection) {
    return TryReadCorrections(version, state.correction + within, deadline, out);
  }
  const SlotArray whole = ArrayOf(state, slot);
  const int64_t end = within + static_cast<int64_t>(out.size());
  // Codes are read by whole blocks.
  const int64_t grid = whole.is_coded() ? kCodeGrid : 1;
  for (int64_t begin = within / grid * grid; begin < end; begin += kElementsAtOnce) {
    const int64_t blocks_end = (std::min(end, begin + kElementsAtOnce) + grid - 1) / grid * grid;
    const int64_t count = std::min(blocks_end, piece.elements) - begin;
    const SlotArray array = whole.From(begin);
    const auto take = [&](char* window) {
      const int64_t first = std::max(within, begin);
      const int64_t last = std::min(end, begin + count);
      ReadSlotRacily(InWindow(array, window), count, first - begin, last - first,
                     out.data() + (first - within));
    };
    absl::StatusOr<bool> read =
        device_access_->TryRead(version, RangesOf(array, count), deadline, take);
    if (!read.ok() || !*read) return read;
  }
  return true;
}

absl::StatusOr<bool> ShardStore::TryReadCorrections(uint64_t version, const int8_t* corrections,
                                                    absl::Time deadline,
                                                    absl::Span<double> out) const {
  const auto elements = static_cast<int64_t>(out.size());
  for (int64_t begin = 0; begin < elements; begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, elements - begin);
    absl::StatusOr<bool> read = device_access_->TryRead(
        version, {{corrections + begin, 0, static_cast<size_t>(count)}}, deadline,
        [&](const char* window) {
          ReadCorrectionsRacily(reinterpret_cast<const int8_t*>(window), count, &out[begin]);
        });
    if (!read.ok() || !*read) return read;
  }
  return true;
}

absl::Status ShardStore::WriteOnDevice(int parameter, int slot, int64_t offset_elements,
                                       absl::Span<const double> values) {
  const absl::Time deadline = Clock::Monotonic().Now() + kLongestWrite;
  return device_access_->Write(deadline, [&](HostTransfer& transfer) {
    absl::Status status;
    WritePieces(parameter, slot, offset_elements, static_cast<int64_t>(values.size()),
                [&](const State& state, int64_t within, int64_t given, int64_t count) {
                  if (!status.ok()) return;
                  const double* const from = values.data() + given;
                  if (slot == kCorrection) {
                    const std::vector<int8_t> corrections(from, from + count);
                    status = transfer.Write(state.correction + within, corrections.data(),
                                            corrections.size(), deadline);
                  } else {
                    status =
                        WriteSlotOn(transfer, ArrayOf(state, slot), within, count, from, deadline);
                  }
                });
    return status;
  });
}

}  // namespace optshard
