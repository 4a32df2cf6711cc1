// A replacement of a rank's state over many calls, which may end half-way.
#ifndef OPTSHARD_SERVER_SHARD_STATE_REPLACING_H_
#define OPTSHARD_SERVER_SHARD_STATE_REPLACING_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace optshard {

// What is being replaced. The numbers are in memory that other processes take over.
enum class Replacing : uint32_t {
  kNothing = 0,
  kState = 1,  // slots and step counts
  kAll = 2,    // and the parameters
};

// What has happened to state of no step, and what makes it whole, as messages have it. kNothing: a
// step has torn it.
absl::string_view RemedyOf(Replacing what);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_REPLACING_H_
