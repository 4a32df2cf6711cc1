// A member's session against a coordinator that breaks its event stream.
#include "common/membership/member_session_rpc.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

// Keeps every lease. Begins each event stream as a coordinator does and ends it, when told to, as
// if the network had. Thread-safe.
class BreakingCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse*) override {
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WatchEvent>* writer) override {
    int stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = ++opened_;
    }
    v1::WatchEvent event;
    event.mutable_stream_opened();
    writer->Write(event);
    absl::MutexLock lock(&mutex_);
    const auto broken = [this, stream]()
                            ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return broken_ >= stream; };
    mutex_.AwaitWithTimeout(absl::Condition(&broken), kPatience);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken");
  }

  // Whether so many streams have been opened in all, by the deadline.
  bool WaitForStream(int count, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto opened = [this, count]()
                            ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return opened_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&opened), timeout);
  }

  // Ends all streams up to this one.
  void Break(int stream) {
    absl::MutexLock lock(&mutex_);
    broken_ = stream;
  }

 private:
  absl::Mutex mutex_;
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
  int broken_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A coordinator gives a member 0.3 s to open its stream again.
TEST(MemberSessionRpc, StreamBreaksAgainAndAgain_IsOpenedAsSoonAsTheFirstTime) {
  BreakingCoordinator coordinator;
  const auto listening = StartServer("127.0.0.1:0", {&coordinator}).value();
  const std::string address = WithPort("127.0.0.1:0", listening.port);
  JoinReply reply;
  reply.incarnation = 1;
  reply.lease = absl::Seconds(60);
  reply.heartbeat_period = absl::Seconds(60);
  const std::unique_ptr<MemberSession> session = StartMemberSession(
      address, MakeChannel(address), {"job", "default", 0, 1}, reply, OptimizerSpec());
  // Pauses that grow from 10 ms have come to more than 0.6 s by the seventh break. One of the last
  // breaks suffices: a busy machine may hold up the others.
  constexpr int kBreaks = 10;
  constexpr int kLast = 7;
  absl::Duration shortest = absl::InfiniteDuration();
  ASSERT_TRUE(coordinator.WaitForStream(1, kPatience));
  for (int stream = 1; stream <= kBreaks; ++stream) {
    const absl::Time broken = Clock::Monotonic().Now();
    coordinator.Break(stream);
    ASSERT_TRUE(coordinator.WaitForStream(stream + 1, kPatience));
    if (stream >= kLast) shortest = std::min(shortest, Clock::Monotonic().Now() - broken);
  }
  EXPECT_LT(shortest, absl::Milliseconds(300));
  coordinator.Break(kBreaks + 1);
}

}  // namespace
}  // namespace optshard
