#include "common/membership/coordinator_client_rpc.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/membership/member_session_rpc.h"
#include "common/membership/membership_rpc.h"
#include "common/request_id.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
// Join and GetStatus answer at once; a coordinator that does not is as good as none.
constexpr absl::Duration kAttempt = absl::Seconds(5);

class RpcCoordinatorClient final : public CoordinatorClient {
 public:
  explicit RpcCoordinatorClient(std::string address)
      : address_(std::move(address)),
        status_stub_(v1::Coordinator::NewStub(MakeChannel(address_))) {}

  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline,
                                                      Cancellation* cancellation) override {
    Cancellation never;
    Cancellation& cancelled = cancellation != nullptr ? *cancellation : never;
    const std::shared_ptr<grpc::Channel> channel = MakeChannel(address_);
    const std::unique_ptr<v1::Coordinator::Stub> stub = v1::Coordinator::NewStub(channel);
    v1::JoinRequest message = ToProto(request);
    if (request.request_id.empty()) message.mutable_header()->set_request_id(NewRequestId());

    const absl::Time start = Clock::Monotonic().Now();
    absl::Duration pause = kFirstPause;
    while (true) {
      const absl::Duration left = deadline - Clock::Monotonic().Now();
      grpc::ClientContext context;
      context.set_deadline(DeadlineAfter(std::min(left, kAttempt)));
      v1::JoinResponse response;
      absl::Status status;
      {
        const Cancellation::Callback end_call(&cancelled, [&context] { context.TryCancel(); });
        status = FromGrpc(stub->Join(&context, message, &response));
      }
      if (status.ok()) {
        MemberId id{request.job, request.optimizer, request.rank, response.incarnation()};
        return StartMemberSession(address_, channel, std::move(id), FromProto(response),
                                  cancellation);
      }
      if (!cancelled.reason().ok()) return cancelled.reason();
      // The coordinator itself answers a join with neither of these, except while it shuts down.
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
      const absl::Time now = Clock::Monotonic().Now();
      if (now + pause >= deadline) return NobodyThere(request.rank, now - start, status);
      if (cancelled.WaitFor(pause)) return cancelled.reason();
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  absl::StatusOr<JobStatus> GetStatus(absl::Time deadline) override {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(deadline - Clock::Monotonic().Now()));
    context.set_wait_for_ready(true);
    v1::JobStatus response;
    const absl::Status status =
        FromGrpc(status_stub_->GetStatus(&context, v1::GetStatusRequest(), &response));
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      return absl::UnavailableError(
          absl::StrCat("no coordinator answers at ", address_, ": ", status.message()));
    }
    if (!status.ok()) return status;
    return FromProto(response);
  }

 private:
  absl::Status NobodyThere(Rank rank, absl::Duration tried, const absl::Status& last) const {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " tried for ",
        absl::FormatDuration(absl::Trunc(tried, absl::Milliseconds(100))),
        " to join, but no coordinator answers at ", address_, " (", last.message(),
        "); check the address, and that optshard-coordinator, or rank 0 if it hosts the "
        "coordinator, is running"));
  }

  const std::string address_;
  const std::unique_ptr<v1::Coordinator::Stub> status_stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> MakeCoordinatorClient(
    const std::string& address) {
  if (address.empty()) {
    return absl::InvalidArgumentError("the coordinator's address is empty, expected HOST:PORT");
  }
  return std::make_unique<RpcCoordinatorClient>(address);
}

}  // namespace optshard
