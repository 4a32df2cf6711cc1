#include "common/rpc/probe_server_rpc.h"

#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"

namespace optshard {
namespace {

// For answers that are under way when the program ends.
constexpr absl::Duration kGrace = absl::Milliseconds(100);

}  // namespace

class ProbeServer::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) { Beat(); }

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (watch_.joinable()) watch_.join();
    if (server_ == nullptr) return;
    server_->Shutdown(DeadlineAfter(kGrace));
    server_->Wait();
  }

  absl::Status Start() {
    absl::StatusOr<ListeningServer> listening = StartServer(options_.listen, {});
    if (!listening.ok()) return listening.status();
    server_ = std::move(listening->server);
    port_ = listening->port;
    Say(kLivenessService, true);
    Say(kReadinessService, false);
    watch_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  int port() const { return port_; }

  void Beat() { last_beat_us_ = absl::ToUnixMicros(options_.clock->Now()); }

  void Say(const char* service, bool serving) {
    server_->GetHealthCheckService()->SetServingStatus(service, serving);
  }

 private:
  // In a thread of its own: the main loop could not say that it hangs.
  void Watch() {
    while (true) {
      const absl::Time last = absl::FromUnixMicros(last_beat_us_);
      Say(kLivenessService, options_.clock->Now() - last <= options_.longest_silence);
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.look)) return;
    }
  }

  const Options options_;
  std::atomic<int64_t> last_beat_us_{0};
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread watch_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<ProbeServer>> ProbeServer::Start(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  const absl::Status started = impl->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<ProbeServer>(new ProbeServer(std::move(impl)));
}

ProbeServer::ProbeServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProbeServer::~ProbeServer() = default;
int ProbeServer::port() const { return impl_->port(); }
void ProbeServer::Beat() { impl_->Beat(); }
void ProbeServer::SetReady(bool ready) { impl_->Say(kReadinessService, ready); }

}  // namespace optshard
