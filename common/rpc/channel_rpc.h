// How our clients reach our servers.
#ifndef OPTSHARD_COMMON_RPC_CHANNEL_RPC_H_
#define OPTSHARD_COMMON_RPC_CHANNEL_RPC_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace optshard {

// A connection of its own to HOST:PORT, in the clear: two channels of a process share no socket, so
// that the end of one is seen as the end of its member. Never goes through an HTTP proxy.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Likewise, for a stream of many large messages.
std::shared_ptr<grpc::Channel> MakeBulkChannel(const std::string& address);

// For grpc::ClientContext::set_deadline.
std::chrono::system_clock::time_point DeadlineAfter(absl::Duration timeout);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_CHANNEL_RPC_H_
