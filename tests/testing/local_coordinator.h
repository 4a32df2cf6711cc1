// A coordinator and its clients in one process, without gRPC: the real domain class behind the
// interface that members use.
#ifndef OPTSHARD_TESTS_TESTING_LOCAL_COORDINATOR_H_
#define OPTSHARD_TESTS_TESTING_LOCAL_COORDINATOR_H_

#include <memory>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "common/membership/coordinator_client.h"
#include "common/membership/membership.h"
#include "server/coordinator/coordinator.h"

namespace optshard {

class LocalMember;

// Thread-safe; outlives its sessions. By default it works in real time, with times short enough for
// tests; deadlines are those of Clock::Monotonic().
class LocalCoordinator : public CoordinatorClient {
 public:
  static Coordinator::Options QuickOptions(int world_size);

  // A thread lets time pass and, for each session that is not stalled, keeps its lease.
  explicit LocalCoordinator(int world_size) : LocalCoordinator(QuickOptions(world_size)) {}
  explicit LocalCoordinator(Coordinator::Options options);
  ~LocalCoordinator() override;

  using CoordinatorClient::Join;
  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline,
                                                      Cancellation* cancellation) override;
  absl::StatusOr<std::vector<std::string>> GetOwners(const std::string& optimizer,
                                                     absl::Time deadline) override;
  absl::StatusOr<JobStatus> GetStatus(absl::Time deadline) override;

  // As SIGKILL would look to the coordinator. The session object lives on, cut off.
  void Kill(Rank rank);
  // As SIGSTOP: the sessions of the rank say no more, by heartbeat or otherwise.
  void Stall(Rank rank);

  Coordinator& domain() { return *domain_; }

 private:
  friend class LocalSession;

  void Run();
  std::set<std::shared_ptr<LocalMember>> Members();
  void Remove(const std::shared_ptr<LocalMember>& member);

  std::unique_ptr<Coordinator> domain_;
  absl::Mutex mutex_;
  std::set<std::shared_ptr<LocalMember>> members_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_TESTING_LOCAL_COORDINATOR_H_
