// Asks shard owners, several at a time.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_OWNER_CALLS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_OWNER_CALLS_RPC_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/hand_over.h"
#include "common/rpc/status_rpc.h"

namespace optshard {

struct OwnerToAsk {
  Rank rank = 0;
  std::string address;  // HOST:PORT; empty: the rank has told none
};

// UNAVAILABLE naming the rank where there is no address.
absl::Status CheckAddress(const OwnerToAsk& owner);

// How long owners are waited for.
struct CallPatience {
  absl::Time deadline;          // on Clock::Monotonic
  std::function<bool()> ended;  // whether nobody wants the answers any more
};

// The calls of one AskOwners that are under way. Thread-safe.
class CallWindow {
 public:
  // Waits until few enough are. False where the answers are not wanted any more.
  bool Enter(const CallPatience& patience);
  void Leave();
  // Waits until none is. False where the answers are not wanted any more; call again.
  bool WaitForAll(const CallPatience& patience);

 private:
  bool HasRoom() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsEmpty() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_ == 0; }
  bool Await(bool (CallWindow::*condition)() const, const CallPatience& patience)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One unary call to each owner, several at a time; requests[i] is for owners[i]. Returns their
// answers, or why there is none: by the deadline each has one. Owners of one address share a
// connection. Thread-safe.
template <typename Service, typename Request, typename Response>
std::vector<absl::StatusOr<Response>> AskOwners(
    absl::Span<const OwnerToAsk> owners, absl::Span<const Request> requests,
    void (Service::StubInterface::async_interface::*method)(grpc::ClientContext*, const Request*,
                                                            Response*,
                                                            std::function<void(grpc::Status)>),
    const CallPatience& patience) {
  struct Call {
    grpc::ClientContext context;
    Response response;
    absl::Status status;
    std::shared_ptr<CallWindow> window;  // outlives the calls that leave it
  };
  std::map<std::string, std::unique_ptr<typename Service::Stub>> stubs;
  std::vector<std::unique_ptr<Call>> calls;
  const auto window = std::make_shared<CallWindow>();
  bool wanted = true;
  for (size_t i = 0; i < owners.size(); ++i) {
    calls.push_back(std::make_unique<Call>());
    Call* const call = calls.back().get();
    call->status = CheckAddress(owners[i]);
    if (!call->status.ok()) continue;
    std::unique_ptr<typename Service::Stub>& stub = stubs[owners[i].address];
    if (stub == nullptr) stub = Service::NewStub(MakeChannel(owners[i].address));
    wanted = wanted && window->Enter(patience);
    if (!wanted) {
      call->status = absl::CancelledError("the client has gone");
      continue;
    }
    call->context.set_deadline(DeadlineAfter(patience.deadline - Clock::Monotonic().Now()));
    call->window = window;
    HandOver(call);
    (stub->async()->*method)(&call->context, &requests[i], &call->response,
                             [call](const grpc::Status& status) {
                               TakeOver(call);
                               const std::shared_ptr<CallWindow> left = call->window;
                               call->status = FromGrpc(status);
                               left->Leave();
                             });
  }
  while (!window->WaitForAll(patience)) {
    for (const std::unique_ptr<Call>& call : calls) call->context.TryCancel();
  }
  std::vector<absl::StatusOr<Response>> answers;
  for (const std::unique_ptr<Call>& call : calls) {
    if (call->status.ok()) {
      answers.push_back(std::move(call->response));
    } else {
      answers.push_back(call->status);
    }
  }
  return answers;
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_OWNER_CALLS_RPC_H_
