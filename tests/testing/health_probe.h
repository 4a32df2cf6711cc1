// What a supervisor's probe hears from a program at a port of this host.
#ifndef OPTSHARD_TESTS_TESTING_HEALTH_PROBE_H_
#define OPTSHARD_TESTS_TESTING_HEALTH_PROBE_H_

#include <string>

#include "absl/time/time.h"

namespace optshard::testing {

enum class Health { kServing, kNotServing, kUnknownService, kNoAnswer };

// Asks grpc.health.v1.Health/Check about the service; "" is the program as a whole.
Health ProbeHealth(int port, const std::string& service);

// Asks until that is the answer. False where it is not by then.
bool AwaitHealth(int port, const std::string& service, Health expected, absl::Duration patience);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_HEALTH_PROBE_H_
