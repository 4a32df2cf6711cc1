#include "server/coordinator/rendezvous_store.h"

#include <gtest/gtest.h>

#include "absl/types/optional.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

const absl::Time kStart = absl::UnixEpoch();

class RendezvousStoreTest : public ::testing::Test {
 protected:
  void Get(const std::string& key, absl::Duration wait) {
    store_.Get(
        key, kStart + wait,
        [this](absl::StatusOr<std::string> value) { answer_ = std::move(value); }, deferred_);
  }
  void Run() {
    Deferred deferred;
    deferred.swap(deferred_);
    for (const auto& callback : deferred) callback();
  }

  RendezvousStore store_;
  Deferred deferred_;
  absl::optional<absl::StatusOr<std::string>> answer_;
};

TEST_F(RendezvousStoreTest, GetAfterPut_AnswersAtOnceButNotWithinTheCall) {
  ASSERT_TRUE(store_.Put("k", "v", deferred_).ok());
  Get("k", absl::Seconds(1));
  EXPECT_FALSE(answer_.has_value());
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(**answer_, "v");
}

TEST_F(RendezvousStoreTest, PutThatIsTooLong_IsInvalidAndLeavesNothing) {
  const std::string value(kMaxRendezvousValueBytes + 1, 'v');
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Put("k", value, deferred_)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store_.Put(std::string(kMaxNameBytes + 1, 'k'), "v", deferred_)));
  EXPECT_TRUE(store_.Put("k", value.substr(1), deferred_).ok());
}

TEST_F(RendezvousStoreTest, GetBeforePut_WaitsForIt) {
  Get("k", absl::Seconds(1));
  ASSERT_TRUE(store_.Put("other", "x", deferred_).ok());
  Run();
  EXPECT_FALSE(answer_.has_value());
  ASSERT_TRUE(store_.Put("k", "v", deferred_).ok());
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(**answer_, "v");
}

TEST_F(RendezvousStoreTest, DeadlinePast_IsNotFoundNamingTheKey) {
  Get("k", absl::Seconds(1));
  store_.Expire(kStart + absl::Milliseconds(999), deferred_);
  Run();
  EXPECT_FALSE(answer_.has_value());
  store_.Expire(kStart + absl::Seconds(1), deferred_);
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsNotFound(answer_->status()));
  EXPECT_NE(answer_->status().ToString().find("\"k\""), std::string::npos);
}

TEST_F(RendezvousStoreTest, SameValueAgain_IsOkOtherValueIsNot) {
  ASSERT_TRUE(store_.Put("k", "v", deferred_).ok());
  EXPECT_TRUE(store_.Put("k", "v", deferred_).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store_.Put("k", "w", deferred_)));
  Get("k", absl::Seconds(1));
  Run();
  EXPECT_EQ(**answer_, "v");
}

TEST_F(RendezvousStoreTest, EmptyKey_IsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Put("", "v", deferred_)));
}

TEST_F(RendezvousStoreTest, Fail_EndsWaitsNowAndLater) {
  Get("k", absl::Seconds(1));
  store_.Fail(absl::UnavailableError("gone"), deferred_);
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(answer_->status()));
  answer_.reset();
  Get("k", absl::Seconds(1));
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(answer_->status()));
  EXPECT_TRUE(absl::IsUnavailable(store_.Put("k", "v", deferred_)));
}

}  // namespace
}  // namespace optshard
