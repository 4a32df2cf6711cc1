// The ShardSaving service: what the coordinator has shard owners do for a checkpoint
// (proto/optshard/v1/checkpoint.proto).
#ifndef OPTSHARD_SERVER_SHARD_SAVING_SHARD_SAVING_SERVICE_H_
#define OPTSHARD_SERVER_SHARD_SAVING_SHARD_SAVING_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "common/new_thread.h"
#include "proto/optshard/v1/checkpoint.grpc.pb.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/saving/writer_slots.h"

namespace optshard {

// Each call has a thread. Thread-safe. Outlives the server's calls.
class ShardSavingService final : public v1::ShardSaving::CallbackService {
 public:
  struct Options {
    ShardViewRegistry* views = nullptr;  // outlives the service
    FileSystem* files = nullptr;         // likewise; null: the system's
    int most_calls = 64;
    int writers = 2;
    // Of a client that is to send something, and has not said how long it may take.
    absl::Duration longest_silence = absl::Minutes(2);
    absl::Duration longest_write = absl::Seconds(10);  // of a client that is to take something
    // For the memory of a snapshot whose call has been cancelled and not ended yet.
    absl::Duration memory_patience = absl::Seconds(2);
    ThreadStarter start_thread = StartSystemThread;
  };

  explicit ShardSavingService(const Options& options)
      : options_(options), writers_(options.writers) {}

  grpc::ServerBidiReactor<v1::SaveShardRequest, v1::SaveShardResponse>* SaveShard(
      grpc::CallbackServerContext* context) override;

 private:
  class Call;

  const Options options_;
  PosixFileSystem system_;
  WriterSlots writers_;
  const std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SAVING_SHARD_SAVING_SERVICE_H_
