#include "client/owner/state_sending.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "client/owner/caught_errors.h"
#include "client/owner/parameter_state.h"
#include "client/owner/state_loading.h"
#include "client/owner/state_shares.h"
#include "common/block_code.h"
#include "common/byte_share.h"

namespace optshard {
namespace {

// As which slots travel, by the letter that says so. Others go as the widest.
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kChar};
constexpr char kNotGiven = '-';

char LetterOf(at::ScalarType type) {
  const auto* const found = std::find(std::begin(kTypes), std::end(kTypes), type);
  return static_cast<char>('0' + (found == std::end(kTypes) ? 0 : found - std::begin(kTypes)));
}

// A slot that is given, of what rank `to` owns of its parameter.
struct SentSlot {
  OwnedPart part;
  int index = 0;  // of the slot
  ParameterSlot slot;
  at::ScalarType type = at::kDouble;
  int64_t elements = 0;
};

// Some elements of one; the window's next bytes.
struct Piece {
  const SentSlot* slot = nullptr;
  int64_t first = 0;
  int64_t elements = 0;
  size_t at = 0;  // in the window
};

class Sending {
 public:
  explicit Sending(const StateSending& options) : options_(options) {}

  // All ranks know then what travels.
  absl::Status ShareSlots(const StateDict& checked) {
    std::string letters;
    if (sends()) {
      ForEachSlot([&](const OwnedPart& part, int, const ParameterSlot& slot) {
        const at::Tensor* const given =
            GivenTensor(checked, *options_.layout, part.parameter, slot);
        letters += given == nullptr ? kNotGiven : LetterOf(given->scalar_type());
      });
    }
    absl::Status shared = options_.exchange->Send(options_.from, kFromEveryRank, &letters);
    size_t next = 0;
    ForEachSlot([&](const OwnedPart& part, int index, const ParameterSlot& slot) {
      const char letter = next < letters.size() ? letters[next] : kNotGiven;
      ++next;
      if (letter < '0' || letter >= static_cast<char>('0' + std::size(kTypes))) return;
      const int64_t elements = ElementsOf(slot.shape.has_value() ? *slot.shape : part.shape);
      slots_.push_back({part, index, slot, kTypes[letter - '0'], elements});
    });
    return shared;
  }

  const std::vector<SentSlot>& slots() const { return slots_; }

  // Whole windows, in the order of the slots. What fails on this rank is `own` then, and it goes on
  // taking part.
  absl::Status ShareValues(const StateDict& checked, StateAccess* state, absl::Status* own) {
    std::vector<Piece> pieces;
    size_t bytes = 0;
    for (const SentSlot& slot : slots_) {
      const auto size = static_cast<int64_t>(c10::elementSize(slot.type));
      for (int64_t first = 0; first < slot.elements;) {
        // Blocks of codes stay whole.
        const int64_t room = (kMaxShareBytes - static_cast<int64_t>(bytes)) / size;
        const int64_t rest = slot.elements - first;
        const int64_t elements = rest <= room ? rest : room / kCodeGrid * kCodeGrid;
        if (elements > 0) {
          pieces.push_back({&slot, first, elements, bytes});
          first += elements;
          // Each begins where a number of any type may.
          bytes += (elements * size + sizeof(double) - 1) / sizeof(double) * sizeof(double);
        }
        if (first == slot.elements && bytes < kMaxShareBytes) continue;
        absl::Status shared = ShareWindow(pieces, bytes, checked, state, own);
        if (!shared.ok()) return shared;
        pieces.clear();
        bytes = 0;
      }
    }
    return pieces.empty() ? absl::OkStatus() : ShareWindow(pieces, bytes, checked, state, own);
  }

 private:
  bool sends() const { return options_.exchange->options().rank == options_.from; }
  bool receives() const { return options_.exchange->options().rank == options_.to; }

  template <typename Use>
  void ForEachSlot(const Use& use) const {
    const StateLayout& layout = *options_.layout;
    for (const int parameter : ParametersOf(*layout.owners, options_.to)) {
      const OwnedPart part = *layout.owners->PartOf(parameter, options_.to);
      const std::vector<ParameterSlot> slots = layout.Slots(parameter);
      for (size_t s = 0; s < slots.size(); ++s) use(part, static_cast<int>(s), slots[s]);
    }
  }

  absl::Status ShareWindow(const std::vector<Piece>& pieces, size_t bytes, const StateDict& checked,
                           StateAccess* state, absl::Status* own) {
    window_.assign(bytes, 0);
    if (sends()) own->Update(Trying([&] { return Fill(pieces, checked); }));
    absl::Status shared = options_.exchange->Share(options_.from, absl::MakeSpan(window_));
    if (shared.ok() && receives() && own->ok()) {
      *own = Trying([&] { return Take(pieces, *state); });
    }
    return shared;
  }

  absl::Status Fill(const std::vector<Piece>& pieces, const StateDict& checked) {
    for (const Piece& piece : pieces) {
      if (filled_ != piece.slot) {
        filled_ = piece.slot;
        values_ = *GivenValues(checked, *options_.layout, piece.slot->part, piece.slot->slot);
      }
      const at::Tensor sent =
          values_.narrow(0, piece.first, piece.elements).cpu().to(piece.slot->type).contiguous();
      std::memcpy(&window_[piece.at], sent.const_data_ptr(), sent.nbytes());
    }
    return absl::OkStatus();
  }

  absl::Status Take(const std::vector<Piece>& pieces, StateAccess& state) {
    for (const Piece& piece : pieces) {
      const SentSlot& sent = *piece.slot;
      absl::Status staged = StageElements(
          state, sent.part.parameter, sent.index, OffsetOf(sent.slot, sent.part) + piece.first,
          at::from_blob(&window_[piece.at], {piece.elements}, at::TensorOptions(sent.type)));
      if (!staged.ok()) return staged;
    }
    return absl::OkStatus();
  }

  const StateSending& options_;
  std::vector<SentSlot> slots_;
  std::vector<char> window_;
  const SentSlot* filled_ = nullptr;  // whose values these are
  at::Tensor values_;
};

}  // namespace

absl::Status SendState(const StateSending& sending, const StateDict& checked, StateAccess* state,
                       GivenSlots* given) {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  Sending each(sending);
  absl::Status own;
  absl::Status shared = each.ShareSlots(checked);
  if (shared.ok()) shared = each.ShareValues(checked, state, &own);
  if (shared.ok()) shared = sending.exchange->Agree(own);
  if (!shared.ok()) return shared;
  given->clear();
  for (const SentSlot& slot : each.slots()) given->emplace(slot.part.parameter, slot.index);
  return absl::OkStatus();
}

}  // namespace optshard
