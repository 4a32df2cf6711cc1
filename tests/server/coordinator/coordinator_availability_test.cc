// Members of a coordinator that stops, starts later or anew, or cannot be reached, and callers that
// do not wait for it any longer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/membership/coordinator_client_rpc.h"
#include "server/coordinator/coordinator_server.h"
#include "tests/server/coordinator/coordinator_rpc_rig.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CoordinatorAvailabilityTest = CoordinatorRpcRig;

TEST_F(CoordinatorAvailabilityTest, CoordinatorStops_StepsGoOnAndReportersAreNotKept) {
  Start(2);
  std::vector<Member> members = JoinAll();
  server_->Stop(absl::Seconds(1));
  const absl::Status observed = errors::PeerLost(1, "connection reset");
  EXPECT_EQ(members[0].session->ReportFailure({}, 1, observed, In(absl::Seconds(60))), observed);
  EXPECT_FALSE(members[0].told->HasCome());
  EXPECT_TRUE(absl::IsUnavailable(members[0].session->Leave(In(absl::Milliseconds(100)))));
}

TEST_F(CoordinatorAvailabilityTest, CoordinatorsHostDies_ItIsTheOneLost) {
  Start(3, 0);
  std::vector<Member> members = JoinAll();
  server_->Stop(absl::Seconds(1));
  const absl::Status cause = members[2].session->ReportFailure(
      {}, 1, errors::PeerLost(1, "connection reset"), In(absl::Seconds(60)));
  EXPECT_TRUE(errors::IsPeerLost(cause));
  EXPECT_THAT(errors::RanksOf(cause), ElementsAre(0));
}

TEST_F(CoordinatorAvailabilityTest, StopWithStreamsAndWaitsOpen_ReturnsSoon) {
  Start(2);
  Member forming = Join(0).value();
  Member other = Join(TestJoin(0, 2, "other")).value();
  Member second = Join(TestJoin(1, 2, "other")).value();
  ASSERT_TRUE(other.session->WaitForPlan(In(absl::Seconds(20))).ok());
  std::thread getter(
      [&] { EXPECT_FALSE(other.session->rendezvous().Get("never", In(absl::Seconds(60))).ok()); });
  const absl::Time start = Clock::Monotonic().Now();
  server_->Stop(absl::Seconds(10));
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(8));
  getter.join();
}

TEST_F(CoordinatorAvailabilityTest, StopAfterAWaitOfBeforeThePlan_ReturnsSoon) {
  Start(2);
  Member first = Join(0).value();
  std::thread getter(
      [&] { EXPECT_FALSE(first.session->rendezvous().Get("k", In(absl::Seconds(60))).ok()); });
  Member second = Join(1).value();
  ASSERT_TRUE(first.session->WaitForPlan(In(absl::Seconds(20))).ok());
  const absl::Time start = Clock::Monotonic().Now();
  server_->Stop(absl::Seconds(10));
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(8));
  getter.join();
}

TEST_F(CoordinatorAvailabilityTest, CoordinatorStartsLater_JoinFindsIt) {
  Start(1);
  const int port = server_->port();
  server_->Stop(absl::Seconds(1));
  server_.reset();
  std::thread starter([&] {
    options_.listen = absl::StrCat("127.0.0.1:", port);
    server_ = CoordinatorServer::Start(options_).value();
  });
  const auto client = MakeCoordinatorClient(absl::StrCat("127.0.0.1:", port)).value();
  const auto session = client->Join(TestJoin(0, 1), In(absl::Seconds(20)));
  starter.join();
  EXPECT_TRUE(session.ok()) << session.status();
}

TEST_F(CoordinatorAvailabilityTest,
       CoordinatorStartedAnew_SessionOfTheFormerRunIsNotTakenForTheNewOne) {
  Start(1);
  Member former = std::move(JoinAll()[0]);
  options_.listen = server_->address();
  server_.reset();
  server_ = CoordinatorServer::Start(options_).value();
  Member successor = Join(0).value();
  EXPECT_TRUE(errors::IsStaleIncarnation(former.Failure())) << former.Failure();
  EXPECT_TRUE(successor.session->WaitForPlan(In(absl::Seconds(20))).ok());
  EXPECT_FALSE(successor.told->HasCome());
}

TEST_F(CoordinatorAvailabilityTest, CancelledWhileOthersAreAwaited_EndsTheWaitAndLeaveStillWorks) {
  Start(2);
  const auto client = MakeCoordinatorClient(server_->address()).value();
  Cancellation cancellation;
  const auto session = client->Join(TestJoin(0, 2), In(absl::Seconds(20)), &cancellation).value();
  std::thread canceller([&] { cancellation.Cancel(absl::UnavailableError("shutting down")); });
  const absl::Status status = session->WaitForPlan(In(absl::Hours(1))).status();
  canceller.join();
  EXPECT_EQ(status, absl::UnavailableError("shutting down"));
  EXPECT_TRUE(session->Leave(In(absl::Seconds(20))).ok());
  EXPECT_EQ(Group().members[0].state, MemberState::kMissing);
}

TEST_F(CoordinatorAvailabilityTest, CancelledWhileNobodyListens_EndsTheJoin) {
  Start(1);
  const std::string address = server_->address();
  server_.reset();
  const auto client = MakeCoordinatorClient(address).value();
  Cancellation cancellation;
  std::thread canceller([&] { cancellation.Cancel(absl::UnavailableError("shutting down")); });
  const absl::Status status =
      client->Join(TestJoin(0, 1), In(absl::Hours(1)), &cancellation).status();
  canceller.join();
  EXPECT_EQ(status, absl::UnavailableError("shutting down"));
}

TEST_F(CoordinatorAvailabilityTest, NobodyListens_JoinNamesTheAddressAndHowLongItTried) {
  Start(1);
  const std::string address = server_->address();
  server_.reset();
  const auto client = MakeCoordinatorClient(address).value();
  const absl::Status status = client->Join(TestJoin(0, 1), In(absl::Milliseconds(300))).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr(address), HasSubstr("tried for")));
}

TEST_F(CoordinatorAvailabilityTest, PortTaken_IsAnErrorNamingTheAddress) {
  Start(1);
  CoordinatorServer::Options options = options_;
  options.listen = server_->address();
  const absl::Status status = CoordinatorServer::Start(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.ToString(), HasSubstr(options.listen));
}

}  // namespace
}  // namespace optshard
