#include "common/rpc/status_rpc.h"

#include <string>

#include "absl/strings/string_view.h"
#include "common/errors.h"

namespace optshard {
namespace {

// gRPC carries the message in an HTTP/2 header, whose size (8 KiB) a difference between two long
// parameter names could exceed; the call would then fail with another error.
constexpr size_t kLongestMessage = 4096;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::string_view message = status.message();
  std::string text(message.substr(0, kLongestMessage));
  if (message.size() > kLongestMessage) text += " ...";
  // absl's codes are gRPC's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text,
                      errors::EncodePayload(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  errors::AttachPayload(result, status.error_details());
  return result;
}

bool IsTransportError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return errors::EncodePayload(status).empty();
    default:
      return false;
  }
}

}  // namespace optshard
