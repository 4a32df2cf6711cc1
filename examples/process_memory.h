// How much memory this process holds, measured by the kernel.
#ifndef OPTSHARD_EXAMPLES_PROCESS_MEMORY_H_
#define OPTSHARD_EXAMPLES_PROCESS_MEMORY_H_

#include <cstdint>

namespace optshard {

int64_t ResidentBytes();      // now
int64_t PeakResidentBytes();  // the most so far

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_PROCESS_MEMORY_H_
