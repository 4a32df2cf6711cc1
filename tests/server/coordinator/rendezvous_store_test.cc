#include "server/coordinator/rendezvous_store.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

const absl::Time kStart = absl::UnixEpoch();
constexpr int kWorldSize = 2;

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

  RendezvousStore store_{kWorldSize};
  Deferred deferred_;
  absl::optional<absl::StatusOr<std::string>> answer_;
};

TEST_F(RendezvousStoreTest, GetAfterPut_AnswersAtOnceButNotWithinTheCall) {
  ASSERT_TRUE(store_.Put(0, "k", "v", deferred_).ok());
  Get("k", absl::Seconds(1));
  EXPECT_FALSE(answer_.has_value());
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(**answer_, "v");
}

TEST_F(RendezvousStoreTest, PutThatIsTooLong_IsInvalidAndLeavesNothing) {
  const std::string value(kMaxRendezvousValueBytes + 1, 'v');
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Put(0, "k", value, deferred_)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store_.Put(0, std::string(kMaxNameBytes + 1, 'k'), "v", deferred_)));
  EXPECT_TRUE(store_.Put(0, "k", value.substr(1), deferred_).ok());
}

TEST_F(RendezvousStoreTest, GetOfAKeyThatIsTooLong_IsInvalid) {
  Get(std::string(kMaxNameBytes + 1, 'k'), absl::Seconds(1));
  Run();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(answer_->status())) << answer_->status();
}

TEST_F(RendezvousStoreTest, MoreKeysThanARankMayPut_AreExhaustedForThatRankOnly) {
  for (size_t i = 0; i < kMaxRendezvousKeys; ++i) {
    ASSERT_TRUE(store_.Put(1, absl::StrCat("k", i), "v", deferred_).ok());
  }
  EXPECT_EQ(
      store_.Put(1, "one more", "v", deferred_),
      absl::ResourceExhaustedError(
          "rank 1 puts rendezvous key \"one more\" after 16 others; each may put 16: put more "
          "into one value"));
  EXPECT_TRUE(store_.Put(1, "k0", "v", deferred_).ok()) << "a retry";
  EXPECT_TRUE(store_.Put(0, "one more", "other", deferred_).ok());
}

TEST_F(RendezvousStoreTest, GetBeforePut_WaitsForIt) {
  Get("k", absl::Seconds(1));
  ASSERT_TRUE(store_.Put(0, "other", "x", deferred_).ok());
  Run();
  EXPECT_FALSE(answer_.has_value());
  ASSERT_TRUE(store_.Put(0, "k", "v", deferred_).ok());
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
  ASSERT_TRUE(store_.Put(0, "k", "v", deferred_).ok());
  EXPECT_TRUE(store_.Put(0, "k", "v", deferred_).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store_.Put(0, "k", "w", deferred_)));
  Get("k", absl::Seconds(1));
  Run();
  EXPECT_EQ(**answer_, "v");
}

TEST_F(RendezvousStoreTest, EmptyKey_IsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Put(0, "", "v", deferred_)));
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
  EXPECT_TRUE(absl::IsUnavailable(store_.Put(0, "k", "v", deferred_)));
}

}  // namespace
}  // namespace optshard
