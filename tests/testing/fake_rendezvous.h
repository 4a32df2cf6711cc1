// A Rendezvous in memory, for ranks that are threads of one process.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_RENDEZVOUS_H_
#define OPTSHARD_TESTS_TESTING_FAKE_RENDEZVOUS_H_

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/dataplane/rendezvous.h"

namespace optshard::testing {

// Thread-safe.
class FakeRendezvous : public Rendezvous {
 public:
  absl::Status Put(absl::string_view key, absl::string_view value) override {
    absl::MutexLock lock(&mutex_);
    const auto [entry, inserted] = values_.emplace(std::string(key), std::string(value));
    if (inserted || entry->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("rendezvous key ", key, " holds another value"));
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    absl::MutexLock lock(&mutex_);
    const std::string name(key);
    const auto settled = [&] {
      mutex_.AssertReaderHeld();
      return !failure_.ok() || values_.count(name) > 0;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&settled), deadline - Clock::Monotonic().Now())) {
      return absl::DeadlineExceededError(absl::StrCat("rendezvous key ", name, " was not put"));
    }
    if (!failure_.ok()) return failure_;
    return values_[name];
  }

  // The group has failed: pending and later Gets return `failure`.
  void Fail(const absl::Status& failure) {
    absl::MutexLock lock(&mutex_);
    failure_ = failure;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_RENDEZVOUS_H_
