// A coordinator's client whose wait for the other ranks can be ended: a server that shuts down does
// not wait for ranks that may never come.
#ifndef OPTSHARD_SERVER_NODE_STOPPABLE_COORDINATOR_H_
#define OPTSHARD_SERVER_NODE_STOPPABLE_COORDINATOR_H_

#include <atomic>
#include <memory>

#include "common/membership/coordinator_client.h"

namespace optshard {

// Thread-safe; outlives its sessions.
class StoppableCoordinator : public CoordinatorClient {
 public:
  // `client` outlives this.
  explicit StoppableCoordinator(CoordinatorClient* client) : client_(client) {}

  // Present and later waits for a plan end soon, with UNAVAILABLE.
  void Stop() { stopped_ = true; }

  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline) override;
  absl::StatusOr<JobStatus> GetStatus(absl::Time deadline) override {
    return client_->GetStatus(deadline);
  }

 private:
  CoordinatorClient* const client_;
  std::atomic<bool> stopped_{false};
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_STOPPABLE_COORDINATOR_H_
