#include "common/node_runs.h"

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// By rank.
std::vector<uint32_t> GroupsOf(const ReductionTree& tree) {
  size_t ranks = 0;
  for (const std::vector<Rank>& group : tree.node_groups) ranks += group.size();
  std::vector<uint32_t> groups(ranks);
  for (size_t group = 0; group < tree.node_groups.size(); ++group) {
    for (const Rank rank : tree.node_groups[group]) groups[rank] = static_cast<uint32_t>(group);
  }
  return groups;
}

// How many ranks from `first` on are of that group.
size_t LengthOf(const std::vector<uint32_t>& groups, size_t first, uint32_t group) {
  size_t end = first;
  while (end < groups.size() && groups[end] == group) ++end;
  return end - first;
}

}  // namespace

std::vector<NodeRun> NodeRunsOf(const ReductionTree& tree) {
  const std::vector<uint32_t> groups = GroupsOf(tree);
  std::vector<NodeRun> runs;
  for (size_t next = 0; next < groups.size();) {
    const uint32_t first_group = groups[next];
    const size_t each = LengthOf(groups, next, first_group);
    uint32_t count = 0;
    for (; LengthOf(groups, next, first_group + count) == each; ++count) next += each;
    runs.push_back({first_group, static_cast<uint32_t>(each), count});
  }
  return runs;
}

absl::StatusOr<ReductionTree> ReductionTreeOf(absl::Span<const NodeRun> runs, int world_size) {
  ReductionTree tree;
  uint64_t next = 0;  // rank
  for (const NodeRun& run : runs) {
    // Both factors are below 2^32, so that their product fits.
    const uint64_t ranks = uint64_t{run.ranks_per_group} * run.groups;
    if (ranks == 0 || ranks > static_cast<uint64_t>(world_size) - next) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the reduction tree has a run of ", run.groups, " node groups with ", run.ranks_per_group,
          " ranks each from rank ", next, " on; ranks left for it: ", world_size - next));
    }
    if (run.first_group > tree.node_groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the reduction tree goes on with node group ", run.first_group, " at rank ",
                       next, ", expected at most ", tree.node_groups.size()));
    }
    for (uint64_t group = run.first_group; group < uint64_t{run.first_group} + run.groups;
         ++group) {
      if (group == tree.node_groups.size()) tree.node_groups.emplace_back();
      for (uint32_t i = 0; i < run.ranks_per_group; ++i) {
        tree.node_groups[group].push_back(static_cast<Rank>(next++));
      }
    }
  }
  if (next != static_cast<uint64_t>(world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the reduction tree is of ", next, " ranks, expected ", world_size));
  }
  return tree;
}

}  // namespace optshard
