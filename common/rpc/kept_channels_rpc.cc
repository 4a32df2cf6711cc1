#include "common/rpc/kept_channels_rpc.h"

#include <grpcpp/grpcpp.h>

#include <iterator>

#include "common/rpc/channel_rpc.h"

namespace optshard {
namespace {

bool IsConnected(grpc::Channel& channel) {
  return channel.GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
}

}  // namespace

std::shared_ptr<grpc::Channel> KeptChannels::To(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  const auto kept = channels_.find(address);
  if (kept != channels_.end() && IsConnected(*kept->second)) return kept->second;
  // Before any other goes: that may be the process's last one, and this gRPC's callback thread.
  std::shared_ptr<grpc::Channel> channel = MakeChannel(address);
  // Addresses at which nobody is any more leave their places.
  for (auto each = channels_.begin(); each != channels_.end();) {
    each = IsConnected(*each->second) ? std::next(each) : channels_.erase(each);
  }
  if (channels_.size() < most_) channels_[address] = channel;
  return channel;
}

}  // namespace optshard
