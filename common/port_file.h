// How a program that was started with port 0 tells its port to who started it.
#ifndef OPTSHARD_COMMON_PORT_FILE_H_
#define OPTSHARD_COMMON_PORT_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace optshard {

// Writes "PORT\n" so that a reader sees either no file, or all of it. It is written under a
// temporary name in the same folder first, which is created anew: whatever another user of that
// folder planted there, a symbolic link too, is neither followed nor written to. INTERNAL naming
// the file.
absl::Status WritePortFile(const std::string& path, int port);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PORT_FILE_H_
