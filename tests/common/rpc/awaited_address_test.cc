#include "common/rpc/awaited_address.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A name that appears after so many attempts, and a wait for it whose clock is the test's.
class AwaitedName {
 public:
  explicit AwaitedName(int unknown_attempts) {
    wait_.address_towards = [this, unknown_attempts](const std::string& peer) {
      return ++attempts_ <= unknown_attempts ? absl::StatusOr<std::string>(absl::UnavailableError(
                                                   "the host of " + peer + " is not known"))
                                             : absl::StatusOr<std::string>("10.0.0.7");
    };
    wait_.sleep = [this](absl::Duration pause) {
      clock_.Advance(pause);
      return clock_.Now() < stop_at_;
    };
    wait_.say = [this](const std::string& message) { said_.push_back(message); };
    wait_.clock = &clock_;
    start_ = clock_.Now();
  }

  absl::StatusOr<std::string> Await() { return AwaitAddressTowards("coordinator:4700", wait_); }
  absl::Duration waited() const { return clock_.Now() - start_; }

  AddressWait wait_;
  absl::Time stop_at_ = absl::InfiniteFuture();
  int attempts_ = 0;
  std::vector<std::string> said_;

 private:
  FakeClock clock_;
  absl::Time start_;
};

TEST(AwaitAddressTowards_KnownName_ComesAtOnce, AndSaysNothing) {
  AwaitedName name(0);
  EXPECT_EQ(name.Await().value(), "10.0.0.7");
  EXPECT_EQ(name.waited(), absl::ZeroDuration());
  EXPECT_THAT(name.said_, ElementsAre());
}

TEST(AwaitAddressTowards_NameThatAppears_IsWaitedFor, AndSaidOnceAWhile) {
  AwaitedName name(45);
  EXPECT_EQ(name.Await().value(), "10.0.0.7");
  EXPECT_EQ(name.waited(), absl::Seconds(45));
  EXPECT_THAT(name.said_, ElementsAre(AllOf(HasSubstr("coordinator:4700 is not known"),
                                            HasSubstr("at most 5m")),
                                      HasSubstr("at most 4m30s")));
}

TEST(AwaitAddressTowards_NameThatNeverAppears_IsAnErrorAfterTheTimeout, NamingItAndTheTime) {
  AwaitedName name(1000);
  name.wait_.timeout = absl::Milliseconds(2500);
  const absl::Status failed = name.Await().status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr("coordinator:4700 is not known"), HasSubstr("waited for 2.5s")));
  EXPECT_EQ(name.waited(), absl::Milliseconds(2500));
  EXPECT_EQ(name.attempts_, 4);
}

TEST(AwaitAddressTowards_ToldToEnd_IsCancelled, WithoutAnotherAttempt) {
  AwaitedName name(1000);
  name.stop_at_ = absl::InfinitePast();
  EXPECT_TRUE(absl::IsCancelled(name.Await().status()));
  EXPECT_EQ(name.attempts_, 1);
}

TEST(AwaitAddressTowards_NoAddress_IsInvalidAtOnce, AsOfAddressTowards) {
  AwaitedName name(0);
  name.wait_.address_towards = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(AwaitAddressTowards("nowhere", name.wait_).status()));
  EXPECT_EQ(name.waited(), absl::ZeroDuration());
}

}  // namespace
}  // namespace optshard
