#include "server/shard/saving/snapshot_state.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/state_options.h"

namespace optshard {
namespace {

using KeptArray = ShardSnapshot::KeptArray;
using PartState = ShardSnapshot::PartState;

// A step may be writing what is copied; the caller throws the copy away then. Relaxed atomic loads
// are plain ones on x86-64, and make that defined on this side; of the other side, which tsan would
// report, see server/shard/state/slot_memory.cc.
__attribute__((no_sanitize("thread"))) void RacyCopy(const char* from, size_t bytes, char* to) {
  size_t done = 0;
  if (reinterpret_cast<uintptr_t>(from) % sizeof(uint64_t) == 0) {
    for (; done + sizeof(uint64_t) <= bytes; done += sizeof(uint64_t)) {
      uint64_t word;
      __atomic_load(reinterpret_cast<const uint64_t*>(from + done), &word, __ATOMIC_RELAXED);
      std::memcpy(to + done, &word, sizeof(word));
    }
  }
  for (; done < bytes; ++done) __atomic_load(from + done, to + done, __ATOMIC_RELAXED);
}

// One array of a slice: the parts that it consists of, one after the other.
class SliceSource {
 public:
  SliceSource(const ShardSnapshot& snapshot, ArrayFormat format, KeptArray array)
      : snapshot_(snapshot), format_(format), array_(array) {}

  void Add(int part) {
    const int64_t bytes =
        PartBytes(format_, array_ == KeptArray::kValues ? ArrayPart::kValues : ArrayPart::kScales,
                  snapshot_.parts()[part].elements);
    pieces_.push_back({part, end_, bytes});
    end_ += bytes;
  }

  absl::StatusOr<absl::string_view> Give(int64_t offset, int64_t bytes) {
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                  [](int64_t at, const Piece& each) { return at < each.begin; });
    --piece;
    const bool is_in_one = offset + bytes <= piece->begin + piece->bytes;
    if (is_in_one && snapshot_.state(piece->part) == PartState::kKept) {
      kept_ = Kept(piece->part);
      return absl::string_view(kept_.data + (offset - piece->begin), bytes);
    }
    copy_.resize(bytes);
    for (int64_t done = 0; done < bytes; ++piece) {
      const int64_t within = offset + done - piece->begin;
      const int64_t count = std::min(bytes - done, piece->bytes - within);
      absl::Status copied = Copy(piece->part, within, count, &copy_[done]);
      if (!copied.ok()) return copied;
      done += count;
    }
    return absl::string_view(copy_);
  }

 private:
  struct Piece {
    int part = 0;
    int64_t begin = 0;  // in bytes, of the slice
    int64_t bytes = 0;
  };

  ShardSnapshot::Bytes Kept(int part) const {
    return snapshot_.ReadKept(part, array_, 0, snapshot_.parts()[part].elements);
  }

  absl::Status Copy(int part, int64_t within, int64_t bytes, char* to) const {
    PartState before = snapshot_.state(part);
    while (true) {
      const ShardSnapshot::Bytes from = Kept(part);
      if (bytes > 0) RacyCopy(from.data + within, bytes, to);
      const PartState after = snapshot_.state(part);
      if (after == PartState::kLost) {
        return absl::AbortedError(absl::StrFormat(
            "the state of step %d was replaced, or its owner ended, before it was written",
            snapshot_.step()));
      }
      if (before == after) return absl::OkStatus();
      before = after;
    }
  }

  const ShardSnapshot& snapshot_;
  const ArrayFormat format_;
  const KeptArray array_;
  std::vector<Piece> pieces_;
  int64_t end_ = 0;
  ShardSnapshot::Bytes kept_;
  std::string copy_;
};

class StateMaker {
 public:
  StateMaker(const ShardSnapshot& snapshot, const CheckpointManifest& description)
      : snapshot_(snapshot), description_(description) {}

  absl::Status Take(int index) {
    const ShardSnapshot::Part& part = snapshot_.parts()[index];
    if (part.parameter < 0 ||
        static_cast<size_t>(part.parameter) >= description_.parameters.size()) {
      return Unknown(part);
    }
    const CheckpointParameter& parameter = description_.parameters[part.parameter];
    const auto found =
        std::find_if(parameter.arrays.begin(), parameter.arrays.end(),
                     [&](const CheckpointArray& each) { return each.name == part.slot; });
    if (found != parameter.arrays.end()) {
      return TakeElements(index, static_cast<int>(found - parameter.arrays.begin()), *found);
    }
    if (part.format != StateFormat::kFloat64 || part.elements != 1) return Unknown(part);
    TakeNumber(part, index);
    return absl::OkStatus();
  }

  OwnerState Finish(Rank rank) {
    OwnerState state;
    state.rank = rank;
    state.slices = std::move(slices_);
    for (auto& [parameter, count] : counts_) state.counts.push_back(std::move(count));
    if (!snapshot_.blob().empty()) state.blob = snapshot_.blob();
    return state;
  }

 private:
  // The sources of the last slice.
  struct Sources {
    std::shared_ptr<SliceSource> values;
    std::shared_ptr<SliceSource> scales;
  };

  absl::Status TakeElements(int index, int array, const CheckpointArray& described) {
    const ShardSnapshot::Part& part = snapshot_.parts()[index];
    const absl::optional<BlockCode> code = BlockCodeOf(described.format);
    const int64_t bytes = PartBytes(described.format, ArrayPart::kValues, part.elements);
    if (code != part.code || (!code.has_value() && bytes != part.bytes())) return Unknown(part);
    const bool goes_on =
        !slices_.empty() && slices_.back().parameter == part.parameter &&
        slices_.back().array == array &&
        slices_.back().offset_elements + slices_.back().elements == part.offset_elements;
    if (!goes_on) Begin(part, array, described.format);
    slices_.back().elements += part.elements;
    last_.values->Add(index);
    if (last_.scales != nullptr) last_.scales->Add(index);
    return absl::OkStatus();
  }

  void Begin(const ShardSnapshot::Part& part, int array, ArrayFormat format) {
    OwnerSlice slice;
    slice.parameter = part.parameter;
    slice.array = array;
    slice.offset_elements = part.offset_elements;
    const auto source_of = [&](KeptArray kept) {
      return std::make_shared<SliceSource>(snapshot_, format, kept);
    };
    const auto giving = [](const std::shared_ptr<SliceSource>& source) {
      return [source](int64_t offset, int64_t bytes) { return source->Give(offset, bytes); };
    };
    last_ = {source_of(KeptArray::kValues), nullptr};
    slice.values = giving(last_.values);
    if (IsCoded(format)) {
      last_.scales = source_of(KeptArray::kScales);
      slice.scales = giving(last_.scales);
    }
    slices_.push_back(std::move(slice));
  }

  void TakeNumber(const ShardSnapshot::Part& part, int index) {
    double value = 0;
    std::memcpy(&value, snapshot_.Read(index, 0, 1).data, sizeof(value));
    ParameterCount& count = counts_[part.parameter];
    count.parameter = part.parameter;
    if (part.slot == kStepSlot) {
      count.steps = static_cast<StepNumber>(value);
    } else {
      count.scalars[part.slot] = value;
    }
  }

  static absl::Status Unknown(const ShardSnapshot::Part& part) {
    return absl::InternalError(absl::StrFormat(
        "slot \"%s\" of parameter %d, %s, %d elements, is in the snapshot, not in the description",
        part.slot, part.parameter, NameOf(part.format), part.elements));
  }

  const ShardSnapshot& snapshot_;
  const CheckpointManifest& description_;
  std::vector<OwnerSlice> slices_;
  Sources last_;
  std::map<int, ParameterCount> counts_;
};

}  // namespace

absl::StatusOr<OwnerState> OwnerStateOf(const ShardSnapshot& snapshot,
                                        const CheckpointManifest& description, Rank rank) {
  if (snapshot.generation() != description.generation) {
    return absl::AbortedError(absl::StrFormat(
        "the snapshot of rank %d is of generation %d, and what it has is of generation %d: param "
        "groups were added meanwhile; save again",
        rank, snapshot.generation(), description.generation));
  }
  StateMaker maker(snapshot, description);
  const bool others_have_it = description.policy == PartitionPolicy::kReplicated && rank > 0;
  // By parameter and slot, so that what follows one another is one slice.
  std::vector<int> order(others_have_it ? 0 : snapshot.parts().size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const ShardSnapshot::Part& left = snapshot.parts()[a];
    const ShardSnapshot::Part& right = snapshot.parts()[b];
    return std::tie(left.parameter, left.slot, left.offset_elements) <
           std::tie(right.parameter, right.slot, right.offset_elements);
  });
  for (const int part : order) {
    absl::Status taken = maker.Take(part);
    if (!taken.ok()) return taken;
  }
  return maker.Finish(rank);
}

}  // namespace optshard
