// How much memory this process can still take before the kernel kills a process.
#ifndef OPTSHARD_COMMON_LINK_MEMORY_HEADROOM_H_
#define OPTSHARD_COMMON_LINK_MEMORY_HEADROOM_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"

namespace optshard {

// The bytes that this process can still take: the minimum over its cgroup, the cgroups around it
// (v1 and v2; droppable page cache counts as free) and the machine's available memory. nullopt
// where none of these can be read. Swap does not count. Thread-safe.
absl::optional<int64_t> MemoryHeadroom();

// The same, read from the tree of files below `root` (its /proc/self/cgroup, /proc/self/mountinfo,
// /proc/meminfo and the cgroup file systems mounted in it), "" for the machine's own.
absl::optional<int64_t> MemoryHeadroomUnder(const std::string& root);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_MEMORY_HEADROOM_H_
