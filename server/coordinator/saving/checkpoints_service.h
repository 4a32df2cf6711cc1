// The Checkpoints service over gRPC (proto/optshard/v1/checkpoint.proto).
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINTS_SERVICE_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINTS_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "proto/optshard/v1/checkpoint.grpc.pb.h"
#include "server/coordinator/saving/checkpoint_saves.h"

namespace optshard {

// Who follows a save holds no thread. Thread-safe. To shut down, first shut down the saves, then
// the gRPC server.
class CheckpointsService final
    : public v1::Checkpoints::WithCallbackMethod_SaveCheckpoint<
          v1::Checkpoints::WithCallbackMethod_ExportModel<v1::Checkpoints::Service>> {
 public:
  // The saves outlive the service's calls.
  CheckpointsService(CheckpointSaves* saves, int world_size)
      : saves_(*saves), world_size_(world_size) {}

  grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>* SaveCheckpoint(
      grpc::CallbackServerContext* context, const v1::SaveCheckpointRequest* request) override;
  grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>* ExportModel(
      grpc::CallbackServerContext* context, const v1::ExportModelRequest* request) override;
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;

 private:
  // Of what `request` has for either.
  template <typename Request>
  grpc::ServerWriteReactor<v1::SaveCheckpointUpdate>* Follow(const Request& request,
                                                             SaveRequest asked);

  CheckpointSaves& saves_;
  const int world_size_;
  const std::shared_ptr<std::atomic<int>> followers_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINTS_SERVICE_H_
