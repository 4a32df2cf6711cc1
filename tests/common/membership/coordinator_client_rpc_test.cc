// A client of a coordinator that answers as none should.
#include "common/membership/coordinator_client_rpc.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/membership/membership_rpc.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers with what it is given, one after the other; the last answer for ever. Thread-safe.
class ScriptedCoordinator final : public v1::Coordinator::Service {
 public:
  explicit ScriptedCoordinator(JoinAnswer answer) { answer_.answer = answer; }
  explicit ScriptedCoordinator(std::vector<OwnerPage> pages) : pages_(std::move(pages)) {}

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest*,
                    v1::JoinResponse* response) override {
    *response = ToProto(answer_);
    return grpc::Status::OK;
  }

  grpc::Status GetOwners(grpc::ServerContext*, const v1::GetOwnersRequest* request,
                         v1::GetOwnersResponse* response) override {
    absl::MutexLock lock(&mutex_);
    first_ranks_.push_back(request->first_rank());
    *response = ToProto(pages_.front());
    if (pages_.size() > 1) pages_.erase(pages_.begin());
    return grpc::Status::OK;
  }

  // That were asked for.
  std::vector<Rank> first_ranks() {
    absl::MutexLock lock(&mutex_);
    return first_ranks_;
  }

 private:
  JoinReply answer_;
  absl::Mutex mutex_;
  std::vector<OwnerPage> pages_ ABSL_GUARDED_BY(mutex_);
  std::vector<Rank> first_ranks_ ABSL_GUARDED_BY(mutex_);
};

class CoordinatorClientRpc : public ::testing::Test {
 protected:
  void Serve(ScriptedCoordinator* coordinator) {
    server_ = StartServer("127.0.0.1:0", {coordinator}).value();
    client_ = MakeCoordinatorClient(WithPort("127.0.0.1:0", server_.port)).value();
  }
  static absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

  absl::Status JoinWithin(absl::Duration time) {
    JoinRequest request;
    request.spec.world_size = 2;
    request.rank = 1;
    return client_->Join(request, In(time), nullptr).status();
  }
  absl::StatusOr<std::vector<std::string>> GetOwners() {
    return client_->GetOwners("default", In(absl::Seconds(20)));
  }

  ListeningServer server_;
  std::unique_ptr<CoordinatorClient> client_;
};

TEST_F(CoordinatorClientRpc, Join_AskedForASpecThatCame_IsInternal) {
  ScriptedCoordinator coordinator(JoinAnswer::kSendSpec);
  Serve(&coordinator);
  const absl::Status status = JoinWithin(absl::Seconds(20));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("asks rank 1 for its spec"));
}

TEST_F(CoordinatorClientRpc, Join_ToldToAskAgainForTooLong_SaysWhomTheCoordinatorWaitsFor) {
  ScriptedCoordinator coordinator(JoinAnswer::kAskAgain);
  Serve(&coordinator);
  const absl::Status status = JoinWithin(absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("still waits for another rank"));
}

TEST_F(CoordinatorClientRpc, GetOwners_OfSeveralPages_HasAll) {
  ScriptedCoordinator coordinator({{1, 3, {"a:1", "b:2"}}, {1, 3, {"c:3"}}});
  Serve(&coordinator);
  EXPECT_THAT(GetOwners().value(), ElementsAre("a:1", "b:2", "c:3"));
  EXPECT_THAT(coordinator.first_ranks(), ElementsAre(0, 2));
}

TEST_F(CoordinatorClientRpc, GetOwners_RanksJoinAnewInBetween_BeginsAnew) {
  ScriptedCoordinator coordinator(
      {{1, 3, {"a:1", "b:2"}}, {2, 2, {"x:9"}}, {2, 2, {"d:4", "e:5"}}});
  Serve(&coordinator);
  EXPECT_THAT(GetOwners().value(), ElementsAre("d:4", "e:5"));
  EXPECT_THAT(coordinator.first_ranks(), ElementsAre(0, 2, 0));
}

TEST_F(CoordinatorClientRpc, GetOwners_AnotherWorldSizeInOneGeneration_IsInternal) {
  ScriptedCoordinator coordinator({{1, 3, {"a:1", "b:2"}}, {1, 4, {"c:3", "d:4"}}});
  Serve(&coordinator);
  const absl::Status status = GetOwners().status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 4 owners, and before that 3"));
}

TEST_F(CoordinatorClientRpc, GetOwners_MoreThanThereAre_IsInternal) {
  ScriptedCoordinator coordinator({{1, 3, {"a:1", "b:2"}}, {1, 3, {"c:3", "d:4"}}});
  Serve(&coordinator);
  EXPECT_THAT(std::string(GetOwners().status().message()), HasSubstr("2 of the 1 owners"));
}

}  // namespace
}  // namespace optshard
