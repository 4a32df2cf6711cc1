#include "examples/shard_inspection_rpc.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"

namespace optshard {
namespace {

absl::Status FromRpc(const grpc::Status& status, const std::string& call,
                     const std::string& address) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(call, " at ", address, ": ", status.error_message()));
}

// Makes calls to one owner. The timeout is for all of them together.
class Inspector {
 public:
  Inspector(const OwnerName& owner, absl::Duration timeout)
      : owner_(owner),
        deadline_(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout)),
        stub_(v1::ShardOwner::NewStub(
            grpc::CreateChannel(owner.address, grpc::InsecureChannelCredentials()))) {}

  absl::StatusOr<v1::ShardDescription> Describe() {
    v1::DescribeShardRequest request;
    request.set_optimizer(owner_.optimizer);
    request.set_rank(owner_.rank);
    grpc::ClientContext context;
    context.set_deadline(deadline_);
    v1::ShardDescription description;
    const grpc::Status status = stub_->DescribeShard(&context, request, &description);
    if (!status.ok()) return FromRpc(status, "DescribeShard", owner_.address);
    return description;
  }

  absl::StatusOr<v1::ListParametersResponse> ListPage(const std::string& page_token) {
    v1::ListParametersRequest request;
    request.set_optimizer(owner_.optimizer);
    request.set_rank(owner_.rank);
    request.set_page_token(page_token);
    grpc::ClientContext context;
    context.set_deadline(deadline_);
    v1::ListParametersResponse page;
    const grpc::Status status = stub_->ListParameters(&context, request, &page);
    if (!status.ok()) return FromRpc(status, "ListParameters", owner_.address);
    return page;
  }

 private:
  const OwnerName owner_;
  const std::chrono::system_clock::time_point deadline_;
  const std::unique_ptr<v1::ShardOwner::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ListParametersOf(const OwnerName& owner,
                                                          absl::Duration timeout) {
  Inspector inspector(owner, timeout);
  std::vector<std::string> lines;
  std::string page_token;
  do {
    absl::StatusOr<v1::ListParametersResponse> page = inspector.ListPage(page_token);
    if (!page.ok()) return page.status();
    if (lines.empty()) lines.push_back(page->summary());
    for (const v1::OwnedParameter& parameter : page->parameters()) {
      lines.push_back(parameter.summary());
    }
    page_token = page->next_page_token();
  } while (!page_token.empty());
  return lines;
}

absl::StatusOr<int64_t> StateBytesOf(const OwnerName& owner, absl::Duration timeout) {
  absl::StatusOr<v1::ShardDescription> description = Inspector(owner, timeout).Describe();
  if (!description.ok()) return description.status();
  return description->state_bytes();
}

}  // namespace optshard
