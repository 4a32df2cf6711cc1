#include "tests/testing/state_share.h"

#include <algorithm>
#include <utility>

#include "common/dtype.h"
#include "common/partition.h"
#include "gtest/gtest.h"

namespace optshard::testing {
namespace {

// Whole blocks of codes, of fewer elements than an owner in another process takes at once.
constexpr int64_t kChunk = 8192;

int64_t ElementsFrom(const StateShare::Slot& slot) {
  return static_cast<int64_t>(slot.values.size());
}

}  // namespace

StateShare ReadShare(StateAccess& state, const OptimizerSpec& spec, Rank rank,
                     absl::Span<const ReplicaTensor> tensors) {
  StateShare share;
  const Partition partition = MakePartition(spec.space, spec.world_size, spec.policy).value();
  for (const Slice& slice : partition.slices[rank]) {
    const std::vector<ParameterSlot> slots = state.Slots(slice.parameter);
    const auto add = [&](int slot, int64_t offset, int64_t elements) {
      StateShare::Slot read{slice.parameter, slot, offset, std::vector<double>(elements)};
      for (int64_t begin = 0; begin < elements; begin += kChunk) {
        const int64_t count = std::min(kChunk, elements - begin);
        const absl::Status done = state.Read(slice.parameter, slot, offset + begin,
                                             absl::MakeSpan(read.values).subspan(begin, count));
        EXPECT_TRUE(done.ok()) << done;
      }
      share.slots.push_back(std::move(read));
    };
    for (size_t s = 0; s < slots.size(); ++s) {
      const auto slot = static_cast<int>(s);
      if (slots[s].is_scalar()) {
        add(slot, 0, 1);
      } else if (slots[s].shape.has_value()) {
        add(slot, 0, ElementsOf(*slots[s].shape));
      } else {
        add(slot, slice.offset_elements, slice.elements);
      }
    }
    const ConstBuffer from = tensors[slice.parameter].parameter.From(slice.offset_elements);
    share.parameters.push_back({slice.parameter, slice.offset_elements,
                                std::string(static_cast<const char*>(from.data()),
                                            slice.elements * SizeOf(from.dtype()))});
  }
  return share;
}

absl::Status StageShare(StateAccess& state, const StateShare& share, Replacing what) {
  absl::Status done = state.BeginStaging(what);
  for (const StateShare::Slot& slot : share.slots) {
    for (int64_t begin = 0; begin < ElementsFrom(slot) && done.ok(); begin += kChunk) {
      const int64_t count = std::min(kChunk, ElementsFrom(slot) - begin);
      done = state.Stage(slot.parameter, slot.slot, slot.offset_elements + begin,
                         absl::MakeConstSpan(slot.values).subspan(begin, count));
    }
  }
  if (what != Replacing::kAll) return done;
  for (const StateShare::Values& values : share.parameters) {
    if (!done.ok()) break;
    done = state.StageBytes(values.parameter, StateAccess::kParameterValues, values.offset_elements,
                            values.bytes);
  }
  return done;
}

}  // namespace optshard::testing
