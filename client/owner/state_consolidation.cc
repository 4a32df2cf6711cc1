#include "client/owner/state_consolidation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/owner/parameter_state.h"
#include "client/owner/shared_state_reader.h"
#include "common/byte_share.h"

namespace optshard {
namespace {

class Consolidation {
 public:
  Consolidation(RankExchange& exchange, const StateLayout& layout, Rank to)
      : exchange_(exchange),
        reader_(&exchange),
        layout_(layout),
        rank_(exchange.options().rank),
        to_(to),
        wanted_(to == kFromEveryRank || to == rank_),
        counts_(layout.parameter_count()) {}

  absl::StatusOr<std::map<int64_t, StateValues>> Run() {
    // All ranks need them, to ask for the same.
    absl::Status read = ReadCounts();
    // Between the reads nothing may fail on one rank alone.
    if (read.ok()) read = exchange_.Agree(Allocate());
    for (Rank from = 0; read.ok() && from < layout_.owners->world_size(); ++from) {
      std::vector<StatePiece> pieces;
      for (int p = 0; p < layout_.parameter_count(); ++p) AddPieces(from, p, &pieces);
      read = Read(from, to_, pieces);
    }
    if (read.ok()) read = reader_.Finish();
    if (!read.ok()) return read;
    return std::move(state_);
  }

 private:
  // Where every rank keeps all, each reads its own.
  absl::Status Read(Rank from, Rank to, absl::Span<const StatePiece> pieces) {
    if (!layout_.replicated) return reader_.Read(from, to, pieces);
    if (from != rank_ || (to != kFromEveryRank && to != rank_)) return absl::OkStatus();
    return reader_.Read(rank_, rank_, pieces);
  }

  absl::Status ReadCounts() {
    absl::Status read;
    for (Rank from = 0; read.ok() && from < layout_.owners->world_size(); ++from) {
      std::vector<StatePiece> pieces;
      for (int p = 0; p < layout_.parameter_count(); ++p) {
        const std::vector<OwnedRange>& owners = layout_.owners->OwnersOf(p);
        if (owners.front().rank != (layout_.replicated ? 0 : from)) continue;
        StatePiece piece;
        piece.parameter = p;
        piece.slot = static_cast<int>(layout_.Slots(p).size()) - 1;
        piece.elements = 1;
        piece.type = at::kDouble;
        piece.to = &counts_[p];
        pieces.push_back(piece);
      }
      read = Read(from, kFromEveryRank, pieces);
    }
    return read;
  }

  // All that this rank gets, with the whole of each slot.
  absl::Status Allocate() {
    if (!wanted_) return absl::OkStatus();
    try {
      for (int p = 0; p < layout_.parameter_count(); ++p) {
        if (counts_[p] == 0) continue;
        StateValues& values = state_[p];
        values[kStepSlot] = StepTensor(counts_[p]);
        const std::vector<ParameterSlot> slots = layout_.Slots(p);
        for (size_t s = 0; s + 1 < slots.size(); ++s) {
          values[slots[s].name] =
              at::empty(slots[s].shape.value_or(layout_.parameter(p).shape), TypeOf(slots[s]));
        }
      }
    } catch (const std::exception& error) {
      return absl::ResourceExhaustedError(error.what());
    }
    return absl::OkStatus();
  }

  void AddPieces(Rank from, int parameter, std::vector<StatePiece>* pieces) {
    const absl::optional<OwnedPart> part = layout_.owners->PartOf(parameter, from);
    if (counts_[parameter] == 0 || !part.has_value()) return;
    const bool is_first = layout_.owners->OwnersOf(parameter).front().rank == from;
    const std::vector<ParameterSlot> slots = layout_.Slots(parameter);
    for (size_t s = 0; s + 1 < slots.size(); ++s) {
      const ParameterSlot& slot = slots[s];
      // What every owner of a part has is the first one's.
      if (slot.shape.has_value() && !is_first && !layout_.replicated) continue;
      StatePiece piece;
      piece.parameter = parameter;
      piece.slot = static_cast<int>(s);
      piece.offset_elements = OffsetOf(slot, *part);
      piece.elements = ElementsOf(slot.shape.has_value() ? *slot.shape : part->shape);
      piece.type = TypeOf(slot);
      if (wanted_ && piece.elements > 0) {
        const at::Tensor& tensor = state_.at(parameter).at(slot.name).toTensor();
        piece.to = static_cast<char*>(tensor.mutable_data_ptr()) +
                   piece.offset_elements * tensor.element_size();
      }
      pieces->push_back(piece);
    }
  }

  RankExchange& exchange_;
  SharedStateReader reader_;
  const StateLayout& layout_;
  const Rank rank_;
  const Rank to_;
  const bool wanted_;
  std::vector<double> counts_;  // by parameter
  std::map<int64_t, StateValues> state_;
};

}  // namespace

absl::StatusOr<std::map<int64_t, StateValues>> ConsolidateState(RankExchange& exchange,
                                                                const StateLayout& layout,
                                                                Rank to) {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  return Consolidation(exchange, layout, to).Run();
}

}  // namespace optshard
