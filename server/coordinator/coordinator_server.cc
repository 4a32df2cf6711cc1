#include "server/coordinator/coordinator_server.h"

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "server/coordinator/coordinator_service.h"
#include "server/coordinator/inspection/job_inspection_service.h"
#include "server/coordinator/saving/coordinator_checkpoints.h"

namespace optshard {

class CoordinatorServer::Impl {
 public:
  Impl(std::unique_ptr<Coordinator> coordinator,
       std::unique_ptr<CoordinatorCheckpoints> checkpoints, Options options)
      : options_(std::move(options)),
        coordinator_(std::move(coordinator)),
        checkpoints_(std::move(checkpoints)),
        service_(coordinator_.get()),
        inspection_(coordinator_.get()) {}

  ~Impl() { Stop(absl::Seconds(1)); }

  absl::Status Start() {
    absl::StatusOr<ListeningServer> listening =
        StartServer(options_.listen, {&service_, &inspection_, &checkpoints_->service()});
    if (!listening.ok()) return listening.status();
    server_ = std::move(listening->server);
    port_ = listening->port;
    ticker_ = std::thread([this] { Tick(); });
    return absl::OkStatus();
  }

  int port() const { return port_; }
  std::string address() const { return WithPort(options_.listen, port_); }
  Coordinator& coordinator() { return *coordinator_; }

  bool WaitUntilDone(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Impl::DoneOrStopping), timeout);
    return done_;
  }

  void Stop(absl::Duration grace) {
    absl::MutexLock stop(&stop_mutex_);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      stopping_ = true;
    }
    // Ends the streams and waits; what a client does not read by then is cancelled.
    coordinator_->Shutdown();
    checkpoints_->Shutdown();
    if (server_ != nullptr) {
      server_->Shutdown(DeadlineAfter(grace));
      server_->Wait();
    }
    if (ticker_.joinable()) ticker_.join();
  }

 private:
  bool DoneOrStopping() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return done_ || stopping_; }

  void Tick() {
    while (true) {
      coordinator_->Tick();
      checkpoints_->Tick();
      if (options_.on_tick) options_.on_tick();
      const bool done = coordinator_->Done();
      absl::MutexLock lock(&mutex_);
      done_ = done;
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.tick)) return;
    }
  }

  const Options options_;
  const std::unique_ptr<Coordinator> coordinator_;
  const std::unique_ptr<CoordinatorCheckpoints> checkpoints_;
  CoordinatorService service_;
  JobInspectionService inspection_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread ticker_;
  absl::Mutex stop_mutex_;  // one Stop at a time; the others wait for it
  absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(Options options) {
  absl::StatusOr<std::unique_ptr<Coordinator>> coordinator =
      Coordinator::Create(options.coordinator);
  if (!coordinator.ok()) return coordinator.status();
  absl::StatusOr<std::unique_ptr<CoordinatorCheckpoints>> checkpoints =
      CoordinatorCheckpoints::Create(options.checkpoints, coordinator->get());
  if (!checkpoints.ok()) return checkpoints.status();
  auto impl =
      std::make_unique<Impl>(*std::move(coordinator), *std::move(checkpoints), std::move(options));
  const absl::Status started = impl->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(impl)));
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorServer::~CoordinatorServer() = default;
int CoordinatorServer::port() const { return impl_->port(); }
std::string CoordinatorServer::address() const { return impl_->address(); }
Coordinator& CoordinatorServer::coordinator() { return impl_->coordinator(); }
bool CoordinatorServer::WaitUntilDone(absl::Duration timeout) {
  return impl_->WaitUntilDone(timeout);
}
void CoordinatorServer::Stop(absl::Duration grace) { impl_->Stop(grace); }

}  // namespace optshard
