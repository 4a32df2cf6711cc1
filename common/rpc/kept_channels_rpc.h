// Connections that stay between calls which are made now and then.
#ifndef OPTSHARD_COMMON_RPC_KEPT_CHANNELS_RPC_H_
#define OPTSHARD_COMMON_RPC_KEPT_CHANNELS_RPC_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace optshard {

// A call through one of them saves the milliseconds in which a connection is made. Thread-safe.
class KeptChannels {
 public:
  // Keeps `most` connections; calls to more addresses than that make their own each time.
  explicit KeptChannels(size_t most) : most_(most) {}

  // As MakeChannel, for calls to HOST:PORT: the channel of the last call, where it stands
  // connected, or else a new one. So whoever has ended and come back at the same address is reached
  // as by a new channel, without waiting for the next attempt of an old one.
  std::shared_ptr<grpc::Channel> To(const std::string& address);

 private:
  const size_t most_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_KEPT_CHANNELS_RPC_H_
