// One member's event stream over gRPC.
#ifndef OPTSHARD_SERVER_COORDINATOR_WATCH_STREAM_SERVICE_H_
#define OPTSHARD_SERVER_COORDINATOR_WATCH_STREAM_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "proto/optshard/v1/coordinator.grpc.pb.h"
#include "server/coordinator/coordinator.h"

namespace optshard {

// Starts a stream that writes StreamOpened and then the caller's events after `after_sequence` as
// they come. The stream deletes itself in gRPC's OnDone.
grpc::ServerWriteReactor<v1::WatchEvent>* StartWatchStream(Coordinator* coordinator, Caller caller,
                                                           uint64_t after_sequence);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_WATCH_STREAM_SERVICE_H_
