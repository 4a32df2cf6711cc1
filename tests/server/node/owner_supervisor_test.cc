#include "server/node/owner_supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What happens to owners, in order.
class Events {
 public:
  void Add(const std::string& event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(event);
  }
  std::vector<std::string> all() const {
    absl::MutexLock lock(&mutex_);
    return events_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

class FakeOwner {
 public:
  explicit FakeOwner(Events* events) : events_(*events) {}
  ~FakeOwner() { events_.Add("destroyed"); }
  FakeOwner(const FakeOwner&) = delete;
  FakeOwner& operator=(const FakeOwner&) = delete;

  absl::Status Stop(absl::Duration /*timeout*/) {
    events_.Add("stopped");
    return absl::UnavailableError("the others are gone");
  }

 private:
  Events& events_;
};

using Supervisor = OwnerSupervisor<FakeOwner>;
using Started = absl::StatusOr<std::unique_ptr<FakeOwner>>;

absl::Status Gone() { return absl::UnavailableError("rank 1 is gone"); }
absl::Status Torn() { return errors::TornStep(7, Gone()); }

// A rank whose attempts end as the test says, one after the other.
class SupervisorTest : public ::testing::Test {
 protected:
  // The n-th attempt ends so; all later ones as the last one.
  Supervisor& Begin(std::vector<absl::Status> attempts) {
    attempts_ = std::move(attempts);
    Supervisor::Options options;
    options.start = [this](bool torn) { return Start(torn); };
    options.has_state = [this] { return has_state_; };
    options.on_done = [this] {
      absl::MutexLock lock(&mutex_);
      ++done_;
    };
    options.first_pause = first_pause_;
    options.longest_pause = first_pause_;
    supervisor_ = std::make_unique<Supervisor>(std::move(options));
    return *supervisor_;
  }

  // Until it is done for so many times.
  void AwaitDone(int times = 1) {
    absl::MutexLock lock(&mutex_);
    const auto done = [this, times] {
      mutex_.AssertReaderHeld();
      return done_ >= times;
    };
    mutex_.Await(absl::Condition(&done));
  }

  Started Start(bool torn) {
    events_.Add(torn ? "started torn" : "started");
    const absl::Status outcome = attempts_[std::min(attempt_++, attempts_.size() - 1)];
    if (during_start_) during_start_();
    if (!outcome.ok()) return outcome;
    return std::make_unique<FakeOwner>(&events_);
  }

  Events events_;
  bool has_state_ = true;
  absl::Duration first_pause_;  // no test waits
  std::function<void()> during_start_;
  std::vector<absl::Status> attempts_;
  size_t attempt_ = 0;
  absl::Mutex mutex_;
  int done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Supervisor> supervisor_;
};

using OwnerSupervisorForms = SupervisorTest;
using OwnerSupervisorFails = SupervisorTest;
using OwnerSupervisorEnds = SupervisorTest;

TEST_F(OwnerSupervisorForms, AtOnce_HasTheOwner) {
  Supervisor& supervisor = Begin({absl::OkStatus()});
  AwaitDone();
  EXPECT_TRUE(supervisor.done());
  ASSERT_TRUE(supervisor.owner().ok());
  EXPECT_NE(*supervisor.owner(), nullptr);
  EXPECT_TRUE(supervisor.torn().ok());
  EXPECT_THAT(events_.all(), ElementsAre("started"));
}

TEST_F(OwnerSupervisorForms, AfterFailures_AsOftenAsItTakes) {
  const Supervisor& supervisor = Begin({Gone(), errors::StaleGeneration(1, 2),
                                        absl::DeadlineExceededError("late"), absl::OkStatus()});
  AwaitDone();
  EXPECT_TRUE(supervisor.owner().ok());
  EXPECT_THAT(events_.all(), ElementsAre("started", "started", "started", "started"));
}

TEST_F(OwnerSupervisorForms, WhileItDoes_IsNotDone) {
  absl::Notification begun;
  absl::Notification go_on;
  during_start_ = [&] {
    begun.Notify();
    go_on.WaitForNotification();
  };
  const Supervisor& supervisor = Begin({absl::OkStatus()});
  begun.WaitForNotification();
  EXPECT_FALSE(supervisor.done());
  go_on.Notify();
  AwaitDone();
  EXPECT_TRUE(supervisor.done());
}

TEST_F(OwnerSupervisorForms, Again_TheBrokenOwnerLeavesFirst) {
  Supervisor& supervisor = Begin({absl::OkStatus(), Gone(), absl::OkStatus()});
  AwaitDone();
  supervisor.FormAgain();
  AwaitDone(2);
  EXPECT_TRUE(supervisor.owner().ok());
  EXPECT_THAT(events_.all(), ElementsAre("started", "stopped", "destroyed", "started", "started"));
}

TEST_F(OwnerSupervisorForms, OverTornState_SaysSoUntilItIsMended) {
  Supervisor& supervisor = Begin({Torn(), Gone(), absl::OkStatus()});
  AwaitDone();
  ASSERT_TRUE(supervisor.owner().ok());
  EXPECT_TRUE(errors::IsTornStep(supervisor.torn()));
  EXPECT_THAT(supervisor.torn().message(), HasSubstr("no step before a checkpoint is loaded"));
  supervisor.FormAgain();
  AwaitDone(2);
  supervisor.SetMended();
  supervisor.FormAgain();
  AwaitDone(3);
  EXPECT_THAT(events_.all(), ElementsAre("started", "started torn", "started torn",  //
                                         "stopped", "destroyed", "started torn",     //
                                         "stopped", "destroyed", "started"));
}

TEST_F(OwnerSupervisorFails, StatesThatDoNotFit_NothingMoreIsTried) {
  int failed = 0;
  for (const absl::Status& failure :
       {absl::InvalidArgumentError("ranks disagree"), absl::DataLossError("of different steps"),
        absl::FailedPreconditionError("the job has ended")}) {
    attempt_ = 0;
    const Supervisor& supervisor = Begin({Gone(), failure, absl::OkStatus()});
    AwaitDone(++failed);
    EXPECT_EQ(supervisor.owner().status(), failure);
    EXPECT_EQ(attempt_, 2u);
  }
}

TEST_F(OwnerSupervisorFails, WithoutState_NothingMoreIsTried) {
  has_state_ = false;
  const Supervisor& supervisor = Begin({Gone(), absl::OkStatus()});
  AwaitDone();
  EXPECT_EQ(supervisor.owner().status(), Gone());
  EXPECT_EQ(attempt_, 1u);
}

TEST_F(OwnerSupervisorFails, PausesDouble_UpToTheLongest) {
  Supervisor::Options options;
  options.first_pause = absl::Milliseconds(20);
  options.longest_pause = absl::Milliseconds(70);
  absl::Duration pause;
  for (const int milliseconds : {20, 40, 70, 70}) {
    pause = Supervisor::NextPause(pause, options);
    EXPECT_EQ(pause, absl::Milliseconds(milliseconds));
  }
}

// Both ways to give up end a pause that would last for ever.
TEST_F(OwnerSupervisorEnds, GivenUpBetweenAttempts_KeepsTheLastFailure) {
  first_pause_ = absl::InfiniteDuration();
  Supervisor& supervisor = Begin({Gone(), absl::OkStatus()});
  supervisor.GiveUp();
  AwaitDone();
  EXPECT_EQ(supervisor.owner().status(), Gone());
  EXPECT_EQ(attempt_, 1u);
}

TEST_F(OwnerSupervisorEnds, GivenUpWhileItForms_TheAttemptMayStillSucceed) {
  absl::Notification begun;
  absl::Notification go_on;
  during_start_ = [&] {
    begun.Notify();
    go_on.WaitForNotification();
  };
  Supervisor& supervisor = Begin({absl::OkStatus()});
  begun.WaitForNotification();
  supervisor.GiveUp();
  go_on.Notify();
  AwaitDone();
  EXPECT_TRUE(supervisor.owner().ok());
}

TEST_F(OwnerSupervisorEnds, DestroyedBetweenAttempts_MakesNoOther) {
  first_pause_ = absl::InfiniteDuration();
  absl::Notification begun;
  during_start_ = [&] { begun.Notify(); };
  Begin({Gone(), absl::OkStatus()});
  begun.WaitForNotification();
  supervisor_ = nullptr;
  EXPECT_THAT(events_.all(), ElementsAre("started"));
}

TEST_F(OwnerSupervisorEnds, DestroyedWhileItForms_WaitsAndLeavesNoOwner) {
  absl::Notification begun;
  during_start_ = [&] { begun.Notify(); };
  Begin({absl::OkStatus()});
  begun.WaitForNotification();
  supervisor_ = nullptr;
  EXPECT_THAT(events_.all(), ElementsAre("started", "destroyed"));
}

TEST_F(OwnerSupervisorEnds, DestroyedWithAnOwner_DoesNotStopIt) {
  Begin({absl::OkStatus()});
  AwaitDone();
  supervisor_ = nullptr;
  EXPECT_THAT(events_.all(), ElementsAre("started", "destroyed"));
}

}  // namespace
}  // namespace optshard
