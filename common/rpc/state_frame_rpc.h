// StateFrame of proto/optshard/v1/shard_owner.proto without a copy of its values: they lie in the
// message as slices of the memory that has them.
#ifndef OPTSHARD_COMMON_RPC_STATE_FRAME_RPC_H_
#define OPTSHARD_COMMON_RPC_STATE_FRAME_RPC_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/optshard/v1/shard_owner.pb.h"

namespace optshard {

// A message that any gRPC client can parse: `head`, which has no values, then the values, which are
// `bytes` of `data`. gRPC calls `release` from any thread when it needs them no more; it must not
// block.
grpc::ByteBuffer EncodeStateFrame(const v1::StateFrame& head, const char* data, size_t bytes,
                                  std::function<void()> release);

// What has come over the network. `values` are parts of the slices, one behind the other.
struct StateFrameParts {
  v1::StateFrame head;
  std::vector<grpc::Slice> slices;
  struct Part {
    const char* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Part> values;
  size_t value_bytes = 0;
};

// INTERNAL where that is no frame, or its values are not the last field.
absl::StatusOr<StateFrameParts> DecodeStateFrame(const grpc::ByteBuffer& message);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_STATE_FRAME_RPC_H_
