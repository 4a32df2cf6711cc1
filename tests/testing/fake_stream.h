// A stand-in for a device's stream: work that is put on it runs, in order, when it is synchronised.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_STREAM_H_
#define OPTSHARD_TESTS_TESTING_FAKE_STREAM_H_

#include <deque>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"

namespace optshard::testing {

// Bound to a thread.
class FakeStream {
 public:
  using Work = std::function<absl::Status(absl::Time deadline)>;

  void Enqueue(Work work) { work_.push_back(std::move(work)); }

  // Runs what was put on the stream, in order, until one fails; a failed stream runs nothing more.
  absl::Status Synchronize(absl::Time deadline) {
    while (status_.ok() && !work_.empty()) {
      Work work = std::move(work_.front());
      work_.pop_front();
      status_ = work(deadline);
    }
    return status_;
  }

  ExecutionContext context() { return ExecutionContext{"fake", this}; }

 private:
  std::deque<Work> work_;
  absl::Status status_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_STREAM_H_
