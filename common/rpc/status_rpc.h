// absl::Status on its way through gRPC: code and message as gRPC's own, the payload of
// common/errors.h in the error details. gRPC limits both: a long message is cut, and of thousands
// of ranks the first few hundred are kept.
#ifndef OPTSHARD_COMMON_RPC_STATUS_RPC_H_
#define OPTSHARD_COMMON_RPC_STATUS_RPC_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace optshard {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Whether gRPC itself made this error, not the service that was called: nobody answered, or not in
// time, or the call was cancelled.
bool IsTransportError(const absl::Status& status);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_STATUS_RPC_H_
