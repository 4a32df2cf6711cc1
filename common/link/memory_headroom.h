// How much memory this process can still take before the kernel kills somebody for it.
#ifndef OPTSHARD_COMMON_LINK_MEMORY_HEADROOM_H_
#define OPTSHARD_COMMON_LINK_MEMORY_HEADROOM_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"

namespace optshard {

// Bytes that this process can still take: the least of what its cgroup and those around it (v1 and
// v2) leave, page cache that could be dropped included, and of the machine's available memory.
// Nothing where none of it can be read. Swap does not count. Thread-safe.
absl::optional<int64_t> MemoryHeadroom();

// The same of the tree of files below `root` (its /proc/self/cgroup, /proc/self/mountinfo,
// /proc/meminfo and the cgroup file systems mounted in it), "" for the machine's own.
absl::optional<int64_t> MemoryHeadroomUnder(const std::string& root);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_MEMORY_HEADROOM_H_
