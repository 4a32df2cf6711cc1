#include "client/owner/checkpoint_share.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "client/owner/parameter_state.h"
#include "client/owner/state_shares.h"
#include "common/attach/doorbell.h"
#include "common/block_code.h"
#include "common/byte_share.h"
#include "common/default_floating_point.h"
#include "common/fatal.h"
#include "server/checkpoint/array_format.h"

namespace optshard {
namespace {

// A window has values of a MiB, as a block of the file has: where the same rank saved them each
// block is read once, and stays in a core's cache until it is staged.
constexpr int64_t kWindowBytes = int64_t{1} << 20;
static_assert(kWindowBytes % kMaxShareBytes == 0 &&
                  kWindowBytes / sizeof(double) % kStateWindowElements == 0,
              "windows are staged in whole requests");

at::ScalarType ScalarTypeOf(ArrayFormat format) {
  switch (format) {
    case ArrayFormat::kFloat64:
      return at::kDouble;
    case ArrayFormat::kFloat16:
      return at::kHalf;
    case ArrayFormat::kBFloat16:
      return at::kBFloat16;
    case ArrayFormat::kInt8:
      return at::kChar;
    case ArrayFormat::kFloat32:
      return at::kFloat;
    case ArrayFormat::kDynamicSigned:
    case ArrayFormat::kDynamicUnsigned:
    case ArrayFormat::kCompandedAverage:
    case ArrayFormat::kCompandedSquare:
      break;
  }
  Fatal("an array in 8 bits is decoded before it is a tensor");
}

}  // namespace

// Of one array of a parameter, the elements that the rank owns.
struct CheckpointShare::Stretch {
  int parameter = 0;  // the manifest's
  int array = 0;
  ArrayFormat format = ArrayFormat::kFloat32;
  int64_t offset_elements = 0;
  int64_t elements = 0;

  template <typename Work>
  absl::Status ForEachWindow(const Work& work) const {
    const int64_t window = kWindowBytes / PartBytes(format, ArrayPart::kValues, 1);
    absl::Status status;
    for (int64_t begin = 0; begin < elements && status.ok(); begin += window) {
      status = work(offset_elements + begin, std::min(window, elements - begin));
    }
    return status;
  }

  absl::Status Read(const CheckpointReader& from, ArrayPart part, int64_t offset, int64_t count,
                    std::vector<char>* to) const {
    to->resize(PartBytes(format, part, count));
    return from.Read(parameter, array, part, offset, count, absl::MakeSpan(*to));
  }
  absl::Status ReadValues(const CheckpointReader& from, int64_t offset, int64_t count,
                          absl::Span<char> to) const {
    return from.Read(parameter, array, ArrayPart::kValues, offset, count, to);
  }
};

// `use(parameter, slot, stretch)`: of the optimizer's, and the slot's index, kParameterValues of
// the parameter's own.
template <typename Use>
absl::Status CheckpointShare::ForEachStretch(const Use& use) const {
  for (const int p : ParametersOf(*layout_.owners, rank_)) {
    const OwnedPart part = *layout_.owners->PartOf(p, rank_);
    const MatchedParameter& matched = match_.parameters[p];
    const CheckpointParameter& saved = checkpoint_.manifest().parameters[matched.saved];
    for (int slot = StateAccess::kParameterValues; slot < static_cast<int>(matched.arrays.size());
         ++slot) {
      Stretch stretch;
      stretch.parameter = matched.saved;
      stretch.array = slot < 0 ? matched.values : matched.arrays[slot];
      if (stretch.array < 0) continue;
      stretch.format = saved.arrays[stretch.array].format;
      const bool has_own_shape = saved.arrays[stretch.array].shape.has_value();
      stretch.offset_elements = has_own_shape ? 0 : part.offset_elements;
      stretch.elements =
          has_own_shape ? saved.ElementsOf(stretch.array) : c10::multiply_integers(part.shape);
      absl::Status used = use(p, slot, stretch);
      if (!used.ok()) return used;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointShare::Stage(StateAccess& state) const {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  const DefaultFloatingPoint default_mode;
  absl::Status staged = ForEachStretch([&](int parameter, int slot, const Stretch& stretch) {
    return slot < 0 || IsKeptAsSaved(stretch, parameter, slot)
               ? StageBytes(stretch, parameter, slot, state)
               : StageSlot(stretch, parameter, slot, state);
  });
  return staged.ok() ? StageNumbers(state) : staged;
}

absl::Status CheckpointShare::StageNumbers(StateAccess& state) const {
  absl::Status staged;
  for (const int p : ParametersOf(*layout_.owners, rank_)) {
    const CheckpointParameter& saved =
        checkpoint_.manifest().parameters[match_.parameters[p].saved];
    const std::vector<ParameterSlot> slots = layout_.Slots(p);
    for (size_t s = 0; s < slots.size() && staged.ok(); ++s) {
      if (!slots[s].is_scalar()) continue;
      const double value = slots[s].kind == SlotKind::kStep ? static_cast<double>(saved.steps)
                                                            : saved.scalars.at(slots[s].name);
      staged = state.Stage(p, static_cast<int>(s), 0, {&value, 1});
    }
  }
  return staged;
}

// They stay as they are.
absl::Status CheckpointShare::StageBytes(const Stretch& stretch, int parameter, int slot,
                                         StateAccess& state) const {
  const int64_t size = PartBytes(stretch.format, ArrayPart::kValues, 1);
  std::vector<char> window;
  return stretch.ForEachWindow([&](int64_t offset, int64_t count) {
    const int64_t bytes = count * size;
    const auto memory = state.StagedMemory(parameter, slot, offset, bytes);
    if (!memory.ok()) return memory.status();
    if (!memory->empty()) return stretch.ReadValues(checkpoint_, offset, count, *memory);
    window.resize(static_cast<size_t>(bytes));
    absl::Status done = stretch.ReadValues(checkpoint_, offset, count, absl::MakeSpan(window));
    for (int64_t begin = 0; begin < bytes && done.ok(); begin += kMaxShareBytes) {
      const auto length = static_cast<size_t>(std::min(kMaxShareBytes, bytes - begin));
      done =
          state.StageBytes(parameter, slot, offset + begin / size, {window.data() + begin, length});
    }
    return done;
  });
}

bool CheckpointShare::IsKeptAsSaved(const Stretch& stretch, int parameter, int slot) const {
  const ParameterSlot kept = layout_.Slots(parameter)[slot];
  return kept.kind == SlotKind::kElements && !IsCoded(kept.format) && !IsCoded(stretch.format) &&
         ScalarTypeOf(stretch.format) == TypeOf(kept);
}

absl::Status CheckpointShare::StageSlot(const Stretch& stretch, int parameter, int slot,
                                        StateAccess& state) const {
  std::vector<char> window;
  std::vector<char> scales;
  std::vector<float> decoded;
  const absl::optional<BlockCode> code = BlockCodeOf(stretch.format);
  return stretch.ForEachWindow([&](int64_t offset, int64_t count) {
    absl::Status read = stretch.Read(checkpoint_, ArrayPart::kValues, offset, count, &window);
    if (read.ok() && code.has_value()) {
      read = stretch.Read(checkpoint_, ArrayPart::kScales, offset, count, &scales);
    }
    if (!read.ok()) return read;
    if (!code.has_value()) {
      return StageElements(
          state, parameter, slot, offset,
          at::from_blob(window.data(), {count}, at::TensorOptions(ScalarTypeOf(stretch.format))));
    }
    // The owner codes them again, so that they stand for the same values.
    decoded.resize(count);
    Decode({*code, reinterpret_cast<uint8_t*>(window.data()), scales.data()}, count,
           decoded.data());
    return StageElements(state, parameter, slot, offset,
                         at::from_blob(decoded.data(), {count}, at::TensorOptions(at::kFloat)));
  });
}

}  // namespace optshard
