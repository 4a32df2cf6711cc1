// optshard-server --drain: ends the shard server of a socket in good order, as SIGTERM does, and
// waits for its end. For supervisors that can run a program and have no shell to find a process.
#ifndef OPTSHARD_SERVER_NODE_DRAIN_COMMAND_H_
#define OPTSHARD_SERVER_NODE_DRAIN_COMMAND_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// Returns the number of the process that has ended. UNAVAILABLE where nobody listens at the socket;
// PERMISSION_DENIED where another user does; FAILED_PRECONDITION where the server is in another
// PID namespace; DEADLINE_EXCEEDED naming the process where it has not ended in time.
absl::StatusOr<int> DrainServer(const std::string& socket, absl::Duration timeout);

// As a main: the exit code.
int RunDrain(int argc, char** argv);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_DRAIN_COMMAND_H_
