#include "client/owner/inspection_host.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace optshard {
namespace {

// The hosts of this process by the address that they were asked to listen on.
struct Hosts {
  absl::Mutex mutex;
  std::map<std::string, std::weak_ptr<InspectionHost>> by_address ABSL_GUARDED_BY(mutex);

  static Hosts& Instance() {
    static Hosts& hosts = *new Hosts();
    return hosts;
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<InspectionHost>> InspectionHost::Get(const std::string& listen) {
  Hosts& hosts = Hosts::Instance();
  absl::MutexLock lock(&hosts.mutex);
  std::weak_ptr<InspectionHost>& entry = hosts.by_address[listen];
  if (std::shared_ptr<InspectionHost> host = entry.lock()) return host;
  std::shared_ptr<InspectionHost> host(new InspectionHost());
  ShardOwnerServer::Options options;
  options.listen = listen;
  absl::StatusOr<std::unique_ptr<ShardOwnerServer>> started =
      ShardOwnerServer::Start(options, &host->views_);
  if (!started.ok()) return started.status();
  host->server_ = *std::move(started);
  entry = host;
  return host;
}

}  // namespace optshard
