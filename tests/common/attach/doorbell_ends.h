// Both ends of a doorbell, and what one asks of the other.
#ifndef OPTSHARD_TESTS_COMMON_ATTACH_DOORBELL_ENDS_H_
#define OPTSHARD_TESTS_COMMON_ATTACH_DOORBELL_ENDS_H_

#include <unistd.h>

#include <string>

#include "absl/time/time.h"
#include "common/attach/doorbell.h"
#include "common/clock.h"
#include "common/link/memory_budget.h"
#include "common/link/unique_fd.h"

namespace optshard::testing {

inline absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }
inline absl::Time Far() { return In(absl::Seconds(60)); }

// Both ends in one process.
struct Ends {
  explicit Ends(const DoorbellShape& shape)
      : server(*Doorbell::Create(3, shape, MemoryBudget::Unlimited())),
        trainer(*Doorbell::Attach(3, shape, UniqueFd(dup(server.segment().fd())))) {}

  Doorbell server;
  Doorbell trainer;
};

inline DoorbellRequest StepRequest(int parameters) {
  DoorbellRequest request;
  request.timeout = absl::Seconds(7);
  for (int p = 0; p < parameters; ++p) request.has_gradient.push_back(p % 3 != 1);
  request.hyperparameter_version = 1;
  request.hyperparameters = std::string("lr\0=1", 5);
  request.has_blob = true;
  request.blob = std::string("\0cursor", 7);
  return request;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_COMMON_ATTACH_DOORBELL_ENDS_H_
