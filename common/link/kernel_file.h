// Reads what the kernel says in files: /proc, /sys, cgroups.
#ifndef OPTSHARD_COMMON_LINK_KERNEL_FILE_H_
#define OPTSHARD_COMMON_LINK_KERNEL_FILE_H_

#include <string>

#include "absl/types/optional.h"

namespace optshard {

// The whole text. Nothing where there is no such file, or where what it tells of ends meanwhile, as
// processes and cgroups do: then a read fails (ESRCH, ENODEV), for which the iterators of a
// std::ifstream throw. Thread-safe.
absl::optional<std::string> ReadKernelFile(const std::string& path);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_KERNEL_FILE_H_
