#include "server/node/node_inspection_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/rpc/network_choice.h"

namespace optshard {

NodeInspection::NodeInspection(const std::string& host, std::string own_address)
    : host_(host), own_address_(std::move(own_address)) {}

absl::StatusOr<Inspection::Address> NodeInspection::AddressOf(Rank rank, int former_port) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<ShardOwnerServer>& server = servers_[rank];
  if (server == nullptr) {
    ShardOwnerServer::Options options;
    options.listen = absl::StrCat(host_, ":", former_port);
    absl::StatusOr<std::unique_ptr<ShardOwnerServer>> started = ShardOwnerServer::Start(options);
    if (!started.ok() && former_port != 0) {
      options.listen = absl::StrCat(host_, ":0");
      started = ShardOwnerServer::Start(options);
    }
    if (!started.ok()) return started.status();
    server = *std::move(started);
  }
  return Address{ReachableAddress(host_ + ":0", server->port(), own_address_), server->port()};
}

void NodeInspection::Show(absl::string_view optimizer, Rank rank, const ShardView* view) {
  ShardOwnerServer* server = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = servers_.find(rank);
    if (found == servers_.end() || found->second == nullptr) return;
    server = found->second.get();
  }
  if (view == nullptr) {
    server->Unregister(optimizer);
    return;
  }
  const absl::Status shown = server->Register(optimizer, view);
  if (shown.ok()) return;
  LogContext context;
  context.role = "server";
  context.rank = rank;
  Log(LogLevel::kWarning, context, "cannot be looked into: %s", shown.ToString());
}

}  // namespace optshard
