#include "client/owner/coordinator_host.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "server/coordinator/coordinator_server.h"

namespace optshard {
namespace {

// The coordinators of this process by the address that they were asked to listen on.
struct Registry {
  absl::Mutex mutex;
  std::map<std::string, std::weak_ptr<CoordinatorHost>> hosts ABSL_GUARDED_BY(mutex);

  static Registry& Instance() {
    static Registry& registry = *new Registry();
    return registry;
  }
};

}  // namespace

class CoordinatorHost::Impl {
 public:
  explicit Impl(std::unique_ptr<CoordinatorServer> started) : server(std::move(started)) {}
  const std::unique_ptr<CoordinatorServer> server;
};

CoordinatorHost::CoordinatorHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorHost::~CoordinatorHost() = default;

absl::StatusOr<std::shared_ptr<CoordinatorHost>> CoordinatorHost::Get(const Options& options) {
  Registry& registry = Registry::Instance();
  absl::MutexLock lock(&registry.mutex);
  std::weak_ptr<CoordinatorHost>& entry = registry.hosts[options.listen];
  if (std::shared_ptr<CoordinatorHost> host = entry.lock()) return host;
  CoordinatorServer::Options server;
  server.listen = options.listen;
  server.coordinator.group.job = options.job;
  server.coordinator.group.world_size = options.world_size;
  server.coordinator.group.join_timeout = options.join_timeout;
  server.coordinator.group.host_rank = 0;
  absl::StatusOr<std::unique_ptr<CoordinatorServer>> started = CoordinatorServer::Start(server);
  if (!started.ok()) return started.status();
  std::shared_ptr<CoordinatorHost> host(
      new CoordinatorHost(std::make_unique<Impl>(*std::move(started))));
  if (!absl::EndsWith(options.listen, ":0")) entry = host;
  return host;
}

std::string CoordinatorHost::address() const { return impl_->server->address(); }

bool CoordinatorHost::WaitUntilDone(absl::Duration timeout) {
  return impl_->server->WaitUntilDone(timeout);
}

}  // namespace optshard
