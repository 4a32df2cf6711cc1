// How a program that was started with port 0 tells its port to who started it.
#ifndef OPTSHARD_SERVER_COORDINATOR_PORT_FILE_H_
#define OPTSHARD_SERVER_COORDINATOR_PORT_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace optshard {

// Writes "PORT\n" so that a reader sees either no file, or all of it. INTERNAL naming the file.
absl::Status WritePortFile(const std::string& path, int port);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_PORT_FILE_H_
