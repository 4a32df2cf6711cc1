#include "common/membership/coordinator_client_rpc.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/membership/common_proto.h"
#include "common/membership/job_status_rpc.h"
#include "common/membership/member_session_rpc.h"
#include "common/membership/membership_rpc.h"
#include "common/request_id.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

constexpr int kMembersOfAPage = 1000;
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
// Join and GetStatus answer at once; a coordinator that does not is as good as none.
constexpr absl::Duration kAttempt = absl::Seconds(5);

// Adds the members of a page to those of the pages before.
void AddPage(JobStatus page, JobStatus& all) {
  all.job = std::move(page.job);
  for (GroupStatus& group : page.groups) {
    const auto known = std::find_if(all.groups.begin(), all.groups.end(), [&](const auto& other) {
      return other.optimizer == group.optimizer;
    });
    if (known == all.groups.end()) {
      all.groups.push_back(std::move(group));
    } else {
      std::move(group.members.begin(), group.members.end(), std::back_inserter(known->members));
    }
  }
}

class RpcCoordinatorClient final : public CoordinatorClient {
 public:
  explicit RpcCoordinatorClient(std::string address)
      : address_(std::move(address)), stub_(v1::Coordinator::NewStub(MakeChannel(address_))) {}

  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline,
                                                      Cancellation* cancellation) override {
    Cancellation never;
    Cancellation& cancelled = cancellation != nullptr ? *cancellation : never;
    const std::shared_ptr<grpc::Channel> channel = MakeChannel(address_);
    const std::unique_ptr<v1::Coordinator::Stub> stub = v1::Coordinator::NewStub(channel);
    // The spec may be megabytes, and the coordinator needs it once.
    JoinRequest with_digest = WithoutSpec(request);
    if (request.request_id.empty()) with_digest.request_id = NewRequestId();
    v1::JoinRequest message = ToProto(with_digest);

    const absl::Time start = Clock::Monotonic().Now();
    absl::Duration pause = kFirstPause;
    while (true) {
      bool waits_for_spec = false;
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
        const absl::StatusOr<JoinReply> reply = FromProto(response);
        if (!reply.ok()) return reply.status();
        if (reply->answer == JoinAnswer::kAdmitted) {
          MemberId id{request.job, request.optimizer, request.rank, reply->incarnation};
          return StartMemberSession(address_, channel, std::move(id), *reply, request.spec,
                                    cancellation);
        }
        if (reply->answer == JoinAnswer::kSendSpec && !message.has_spec()) {
          *message.mutable_spec() = ToProto(request.spec);
          continue;
        }
        if (reply->answer == JoinAnswer::kSendSpec) {
          return absl::InternalError(absl::StrCat("the coordinator at ", address_, " asks rank ",
                                                  request.rank,
                                                  " for its spec, which came with the request"));
        }
        waits_for_spec = true;
      }
      if (!cancelled.reason().ok()) return cancelled.reason();
      // The coordinator itself answers a join with neither of these, except while it shuts down.
      if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
        return status;
      }
      const absl::Time now = Clock::Monotonic().Now();
      if (now + pause >= deadline) {
        return waits_for_spec ? NoSpecThere(request.rank, now - start)
                              : NobodyThere(request.rank, now - start, status);
      }
      if (cancelled.WaitFor(pause)) return cancelled.reason();
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  absl::StatusOr<std::vector<std::string>> GetOwners(const std::string& optimizer,
                                                     absl::Time deadline) override {
    std::vector<std::string> addresses;
    Generation generation = 0;
    int world_size = 0;
    while (true) {
      v1::GetOwnersRequest request;
      request.set_optimizer(optimizer);
      request.set_first_rank(static_cast<Rank>(addresses.size()));
      v1::GetOwnersResponse response;
      const absl::Status status =
          Ask(&v1::Coordinator::Stub::GetOwners, request, response, deadline);
      if (!status.ok()) return status;
      absl::StatusOr<OwnerPage> page = FromProto(response);
      if (!page.ok()) return page.status();
      if (!addresses.empty() && page->generation != generation) {
        // The ranks have joined anew in between.
        addresses.clear();
        continue;
      }
      if (!addresses.empty() && page->world_size != world_size) {
        return absl::InternalError(
            absl::StrCat("the coordinator at ", address_, " says that generation ", generation,
                         " has ", page->world_size, " owners, and before that ", world_size));
      }
      generation = page->generation;
      world_size = page->world_size;
      const size_t left = page->world_size - addresses.size();
      if (page->addresses.empty() || page->addresses.size() > left) {
        return absl::InternalError(absl::StrCat("the coordinator at ", address_, " returns ",
                                                page->addresses.size(), " of the ", left,
                                                " owners from rank ", addresses.size(), " on"));
      }
      std::move(page->addresses.begin(), page->addresses.end(), std::back_inserter(addresses));
      if (addresses.size() == static_cast<size_t>(world_size)) return addresses;
    }
  }

  absl::StatusOr<JobStatus> GetStatus(absl::Time deadline) override {
    JobStatus all;
    v1::GetStatusRequest request;
    request.set_page_size(kMembersOfAPage);
    do {
      v1::JobStatus response;
      const absl::Status status =
          Ask(&v1::Coordinator::Stub::GetStatus, request, response, deadline);
      if (!status.ok()) return status;
      absl::StatusOr<JobStatus> page = FromProto(response);
      if (!page.ok()) return page.status();
      AddPage(*std::move(page), all);
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    return all;
  }

 private:
  // A call that no member makes. UNAVAILABLE naming the address where nobody answers in time.
  template <typename Request, typename Response>
  absl::Status Ask(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                   const Request& request, Response& response, absl::Time deadline) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(deadline - Clock::Monotonic().Now()));
    context.set_wait_for_ready(true);
    absl::Status status = FromGrpc((stub_.get()->*method)(&context, request, &response));
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      return absl::UnavailableError(
          absl::StrCat("no coordinator answers at ", address_, ": ", status.message()));
    }
    return status;
  }

  absl::Status NoSpecThere(Rank rank, absl::Duration tried) const {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " tried for ",
        absl::FormatDuration(absl::Trunc(tried, absl::Milliseconds(100))),
        " to join, but the coordinator at ", address_,
        " still waits for another rank, which it has asked for the spec; see which rank of the job "
        "has stopped"));
  }

  absl::Status NobodyThere(Rank rank, absl::Duration tried, const absl::Status& last) const {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " tried for ",
        absl::FormatDuration(absl::Trunc(tried, absl::Milliseconds(100))),
        " to join, but no coordinator answers at ", address_, " (", last.message(),
        "); check the address, and that optshard-coordinator, or rank 0 if it hosts the "
        "coordinator, is running"));
  }

  const std::string address_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;  // of calls that no member makes
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
