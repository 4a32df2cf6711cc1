// Names for attempts, so that a retry can be told from a new one.
#ifndef OPTSHARD_COMMON_REQUEST_ID_H_
#define OPTSHARD_COMMON_REQUEST_ID_H_

#include <cstdint>
#include <string>

namespace optshard {

// 128 random bits as 32 hexadecimal digits. No two calls return the same, be it on other hosts, in
// forked children, or in containers in which every process has the same pid. Thread-safe.
std::string NewRequestId();

// Likewise 64 random bits, never 0: for attempts that are told apart among a few.
uint64_t NewToken();

}  // namespace optshard

#endif  // OPTSHARD_COMMON_REQUEST_ID_H_
