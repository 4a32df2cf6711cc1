#include "common/rpc/status_rpc.h"

#include <string>

#include "absl/strings/string_view.h"
#include "common/errors.h"
#include "common/utf8_prefix.h"

namespace optshard {
namespace {

// gRPC carries the message in an HTTP/2 header of at most 8 KiB, which a difference between two
// long parameter names could exceed. The call would then fail with another error.
constexpr size_t kLongestMessage = 4096;

// The payload travels in another header, in base64, and the limit is for all of them together. This
// is room for some 400 ranks.
constexpr size_t kLongestPayload = 2048;

// In a header each byte that is not printable ASCII, and the percent sign, takes three.
size_t HeaderBytes(char byte) { return byte < ' ' || byte > '~' || byte == '%' ? 3 : 1; }

// As much of the message as a header holds.
absl::string_view Fitting(absl::string_view message) {
  size_t header_bytes = 0;
  size_t fitting = 0;
  while (fitting < message.size()) {
    header_bytes += HeaderBytes(message[fitting]);
    if (header_bytes > kLongestMessage) break;
    ++fitting;
  }
  return Utf8Prefix(message, fitting);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  std::string text(Fitting(message));
  if (text.size() < message.size()) text += " ...";
  // absl's codes are gRPC's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text,
                      errors::EncodePayload(status, kLongestPayload));
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
