// The folder of a shard server's socket.
#ifndef OPTSHARD_SERVER_NODE_SOCKET_FOLDER_H_
#define OPTSHARD_SERVER_NODE_SOCKET_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace optshard {

// Makes the folder of the socket, for this user alone, where it is not there: a volume of a
// container belongs to root, and every user may write to it, so that no socket may lie in it
// itself. The listener checks a folder that is there already. INVALID_ARGUMENT where the socket has
// an abstract name, or the folder cannot be made because its own is not there; PERMISSION_DENIED
// and others as the system says. Thread-safe.
absl::Status MakeSocketFolder(const std::string& socket);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_SOCKET_FOLDER_H_
