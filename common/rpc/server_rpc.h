// What all our gRPC servers have in common: health service, reflection, keepalive, limits.
#ifndef OPTSHARD_COMMON_RPC_SERVER_RPC_H_
#define OPTSHARD_COMMON_RPC_SERVER_RPC_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// A parameter list of 100,000 parameters is some 6 MiB.
constexpr int kLargestMessageBytes = 64 << 20;

// A server that has begun to listen.
struct ListeningServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

// Serves `services`, which outlive the server, at HOST:PORT (port 0: any free one), in the clear.
// UNAVAILABLE naming the address where it cannot listen there: a port that is taken is an error.
absl::StatusOr<ListeningServer> StartServer(absl::string_view address,
                                            const std::vector<grpc::Service*>& services);

// The host of HOST:PORT with another port.
std::string WithPort(absl::string_view address, int port);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_SERVER_RPC_H_
