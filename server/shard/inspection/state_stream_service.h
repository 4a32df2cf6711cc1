// ReadState of the ShardOwner service: sends a snapshot as frames that are slices of its memory.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_STATE_STREAM_SERVICE_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_STATE_STREAM_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/inspection/state_stream_limits.h"

namespace optshard {

// How many streams a process has at once.
using StateStreamCount = std::shared_ptr<std::atomic<int>>;

// Answers the call, on a thread of its own, and destroys itself. `views` outlives the gRPC server.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartStateStream(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer& request,
                                                             ShardViewRegistry* views,
                                                             const StateStreamLimits& limits,
                                                             StateStreamCount streams);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_STATE_STREAM_SERVICE_H_
