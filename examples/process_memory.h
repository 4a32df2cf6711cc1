// How much memory this process has resident, as the kernel reports it. Both functions are
// thread-safe and throw StatusError where the kernel does not report it.
#ifndef OPTSHARD_EXAMPLES_PROCESS_MEMORY_H_
#define OPTSHARD_EXAMPLES_PROCESS_MEMORY_H_

#include <cstdint>

namespace optshard {

int64_t ResidentBytes();      // now
int64_t PeakResidentBytes();  // the maximum so far

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_PROCESS_MEMORY_H_
