#include "server/node/node_health_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"

namespace optshard {

class NodeHealthServer::Impl {
 public:
  explicit Impl(ListeningServer listening) : listening_(std::move(listening)) {}
  ~Impl() {
    listening_.server->Shutdown(DeadlineAfter(absl::Milliseconds(500)));
    listening_.server->Wait();
  }

  int port() const { return listening_.port; }
  void SetServing(bool serving) {
    listening_.server->GetHealthCheckService()->SetServingStatus(serving);
  }

 private:
  ListeningServer listening_;
};

absl::StatusOr<std::unique_ptr<NodeHealthServer>> NodeHealthServer::Start(
    const std::string& listen) {
  absl::StatusOr<ListeningServer> listening = StartServer(listen, {});
  if (!listening.ok()) return listening.status();
  std::unique_ptr<NodeHealthServer> server(
      new NodeHealthServer(std::make_unique<Impl>(*std::move(listening))));
  server->SetServing(false);
  return server;
}

NodeHealthServer::NodeHealthServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeHealthServer::~NodeHealthServer() = default;
int NodeHealthServer::port() const { return impl_->port(); }
void NodeHealthServer::SetServing(bool serving) { impl_->SetServing(serving); }

}  // namespace optshard
