#include "common/partition.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

constexpr PartitionPolicy kAll[] = {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                    PartitionPolicy::kBalanced, PartitionPolicy::kReplicated};

Slice Whole(const ParameterSpace& space, int parameter) {
  return {parameter, 0, space.parameter(parameter).elements()};
}

// Where the parameters end that are of the group and the admission of `begin`.
int EndOfRun(const ParameterSpace& space, int begin) {
  int end = begin;
  while (end < space.parameter_count() && space.group_of(end) == space.group_of(begin) &&
         space.admission_of(end) == space.admission_of(begin)) {
    ++end;
  }
  return end;
}

bool HasCosts(const ParameterSpace& space, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    if (space.parameter(i).update_cost > 0) return true;
  }
  return false;
}

// Elements and costs have no common measure, so each are balanced for themselves: the groups
// without costs lie as if they were alone. What was added to a group is a group of its own here.
Partition Greedy(const ParameterSpace& space, int world_size, bool sort) {
  Partition partition;
  partition.slices.resize(world_size);
  std::vector<int64_t> elements(world_size, 0);
  std::vector<int64_t> costs(world_size, 0);
  for (int begin = 0, end; begin < space.parameter_count(); begin = end) {
    end = EndOfRun(space, begin);
    const bool has_costs = HasCosts(space, begin, end);
    const auto weight = [&](int parameter) {
      const ParameterSpec& spec = space.parameter(parameter);
      return has_costs ? spec.update_cost : spec.elements();
    };
    std::vector<int64_t>& load = has_costs ? costs : elements;
    std::vector<int> order(end - begin);
    std::iota(order.begin(), order.end(), begin);
    if (sort) {
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return weight(a) > weight(b); });
    }
    for (int parameter : order) {
      const auto least = std::min_element(load.begin(), load.end());  // the first one of several
      partition.slices[least - load.begin()].push_back(Whole(space, parameter));
      *least += weight(parameter);
    }
  }
  for (std::vector<Slice>& slices : partition.slices) {
    std::sort(slices.begin(), slices.end(),
              [](const Slice& a, const Slice& b) { return a.parameter < b.parameter; });
  }
  return partition;
}

// Adds the slices of one admission's parameters, [first, end). Rank r's share ends at byte
// (r+1)/world_size of the walk through them, moved down to the next place where a cut may fall:
// less than a block, so shares differ from the mean by less than one.
void AddBalanced(const ParameterSpace& space, int first, int end, int world_size,
                 Partition* partition) {
  int64_t total = 0;
  for (int i = first; i < end; ++i) {
    const ParameterSpec& spec = space.parameter(i);
    total += spec.elements() * static_cast<int64_t>(SizeOf(spec.dtype));
  }
  // total * (rank + 1) / world_size, without the overflow.
  const auto end_of_rank = [&](int64_t rank) {
    return total / world_size * (rank + 1) + total % world_size * (rank + 1) / world_size;
  };

  int rank = 0;
  int64_t begin = 0;  // of the parameter at hand, in bytes of the walk
  for (int i = first; i < end; ++i) {
    const Slice whole = Whole(space, i);
    const auto size = static_cast<int64_t>(SizeOf(space.parameter(i).dtype));
    const int64_t end_bytes = begin + whole.elements * size;
    if (whole.elements == 0) partition->slices[rank].push_back(whole);
    for (int64_t offset = 0; offset < whole.elements;) {
      int64_t cut = whole.elements;
      if (end_of_rank(rank) < end_bytes) {
        cut = (end_of_rank(rank) - begin) / size / kBalancedBlock * kBalancedBlock;
      }
      if (cut > offset) {
        partition->slices[rank].push_back({i, offset, cut - offset});
        offset = cut;
      }
      if (offset < whole.elements) ++rank;
    }
    begin = end_bytes;
  }
}

Partition Balanced(const ParameterSpace& space, int world_size) {
  Partition partition;
  partition.slices.resize(world_size);
  for (int first = 0; first < space.parameter_count();) {
    int end = first;
    while (end < space.parameter_count() && space.admission_of(end) == space.admission_of(first)) {
      ++end;
    }
    AddBalanced(space, first, end, world_size, &partition);
    first = end;
  }
  return partition;
}

Partition Replicated(const ParameterSpace& space, int world_size) {
  std::vector<Slice> all;
  for (int i = 0; i < space.parameter_count(); ++i) all.push_back(Whole(space, i));
  return {std::vector<std::vector<Slice>>(world_size, all)};
}

struct OwnedSlice {
  Slice slice;
  Rank owner;
};

std::string ParameterText(const ParameterSpace& space, int parameter) {
  return absl::StrCat("parameter ", parameter, " \"", space.parameter(parameter).name, "\"");
}

// That `slices`, in any order, hold every element once.
absl::Status CheckCover(const ParameterSpace& space, std::vector<OwnedSlice> slices) {
  std::sort(slices.begin(), slices.end(), [](const OwnedSlice& a, const OwnedSlice& b) {
    return std::tie(a.slice.parameter, a.slice.offset_elements, a.slice.elements, a.owner) <
           std::tie(b.slice.parameter, b.slice.offset_elements, b.slice.elements, b.owner);
  });
  size_t next = 0;
  for (int parameter = 0; parameter < space.parameter_count(); ++parameter) {
    const int64_t elements = space.parameter(parameter).elements();
    const size_t first = next;
    int64_t covered = 0;
    for (; next < slices.size() && slices[next].slice.parameter == parameter; ++next) {
      const OwnedSlice& owned = slices[next];
      const int64_t end = owned.slice.offset_elements + owned.slice.elements;
      const auto error = [&](const auto&... what) {
        return absl::InternalError(absl::StrCat(
            ParameterText(space, parameter), ": rank ", owned.owner, " owns elements [",
            owned.slice.offset_elements, ", ", end, ") of ", elements, what...));
      };
      if (end > elements) return error(", which is past its end");
      if (next > first && (owned.slice.offset_elements < covered || elements == 0)) {
        return error(", which rank ", slices[next - 1].owner, " owns too");
      }
      if (owned.slice.elements == 0 && elements > 0) return error(", which is nothing");
      if (owned.slice.offset_elements > covered) {
        return error(", but elements [", covered, ", ", owned.slice.offset_elements,
                     ") have no owner");
      }
      covered = end;
    }
    if (next == first || covered < elements) {
      return absl::InternalError(absl::StrCat(ParameterText(space, parameter), ": elements [",
                                              covered, ", ", elements, ") have no owner"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view NameOf(PartitionPolicy policy) {
  switch (policy) {
    case PartitionPolicy::kGreedy:
      return "greedy";
    case PartitionPolicy::kGreedyInOrder:
      return "greedy_in_order";
    case PartitionPolicy::kBalanced:
      return "balanced";
    case PartitionPolicy::kReplicated:
      return "replicated";
  }
  return "unknown";
}

absl::StatusOr<PartitionPolicy> ParsePartitionPolicy(absl::string_view name) {
  for (PartitionPolicy policy : kAll) {
    if (NameOf(policy) == name) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown partition policy \"", name, "\"; known are ",
                   absl::StrJoin(kAll, ", ", [](std::string* out, PartitionPolicy policy) {
                     absl::StrAppend(out, NameOf(policy));
                   })));
}

absl::StatusOr<Partition> MakePartition(const ParameterSpace& space, int world_size,
                                        PartitionPolicy policy) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world_size, ": expected at least 1"));
  }
  if (absl::Status status = space.Validate(); !status.ok()) return status;
  switch (policy) {
    case PartitionPolicy::kGreedy:
      return Greedy(space, world_size, /*sort=*/true);
    case PartitionPolicy::kGreedyInOrder:
      return Greedy(space, world_size, /*sort=*/false);
    case PartitionPolicy::kBalanced:
      return Balanced(space, world_size);
    case PartitionPolicy::kReplicated:
      return Replicated(space, world_size);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown partition policy number ", static_cast<int>(policy)));
}

absl::Status CheckPartition(const ParameterSpace& space, const Partition& partition,
                            PartitionPolicy policy) {
  const auto ranks = static_cast<Rank>(partition.slices.size());
  std::vector<OwnedSlice> all;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const std::vector<Slice>& slices = partition.slices[rank];
    std::vector<OwnedSlice> own;
    for (size_t i = 0; i < slices.size(); ++i) {
      const Slice& slice = slices[i];
      if (slice.parameter < 0 || slice.parameter >= space.parameter_count()) {
        return absl::InternalError(absl::StrCat("rank ", rank, " owns a slice of parameter ",
                                                slice.parameter, ", but there are ",
                                                space.parameter_count()));
      }
      const int64_t elements = space.parameter(slice.parameter).elements();
      if (slice.offset_elements < 0 || slice.elements < 0 || slice.offset_elements > elements ||
          slice.elements > elements - slice.offset_elements) {
        return absl::InternalError(absl::StrCat(
            ParameterText(space, slice.parameter), ": rank ", rank, " owns ", slice.elements,
            " elements from ", slice.offset_elements, " on, but it has ", elements));
      }
      if (i > 0 && std::tie(slice.parameter, slice.offset_elements) <
                       std::tie(slices[i - 1].parameter, slices[i - 1].offset_elements)) {
        return absl::InternalError(
            absl::StrCat(ParameterText(space, slice.parameter), ": rank ", rank,
                         "'s slices are not in order of parameter and offset"));
      }
      own.push_back({slice, rank});
    }
    if (policy == PartitionPolicy::kReplicated) {
      if (absl::Status status = CheckCover(space, own); !status.ok()) {
        return absl::InternalError(
            absl::StrCat("rank ", rank, " must own everything: ", status.message()));
      }
    }
    all.insert(all.end(), own.begin(), own.end());
  }
  if (policy == PartitionPolicy::kReplicated) {
    return ranks > 0 ? absl::OkStatus() : absl::InternalError("the partition has no ranks");
  }
  return CheckCover(space, std::move(all));
}

}  // namespace optshard
