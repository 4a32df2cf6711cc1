// Lets the membership's thread abort the data plane when the job has lost a rank.
#ifndef OPTSHARD_SERVER_SHARD_PLANE_GUARD_H_
#define OPTSHARD_SERVER_SHARD_PLANE_GUARD_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/dataplane/data_plane.h"

namespace optshard {

// The failure may be reported before the plane exists or after it is destroyed. Thread-safe.
class PlaneGuard {
 public:
  // A plane that is attached after the failure was reported is aborted at once.
  void Attach(DataPlane* plane) {
    absl::MutexLock lock(&mutex_);
    plane_ = plane;
    if (!reason_.ok()) plane_->Abort(reason_);
  }

  void Abort(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    reason_.Update(reason);
    if (plane_ != nullptr) plane_->Abort(reason_);
  }

  // After this the plane may be destroyed.
  void Detach() {
    absl::MutexLock lock(&mutex_);
    plane_ = nullptr;
  }

  // The first failure reported; OK while there is none.
  absl::Status reason() const {
    absl::MutexLock lock(&mutex_);
    return reason_;
  }

 private:
  mutable absl::Mutex mutex_;
  DataPlane* plane_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_PLANE_GUARD_H_
