// The messages of proto/optshard/v1/attach.proto as bytes on a local socket, and back. What comes
// back is not trusted: it is INVALID_ARGUMENT where the bytes are no such message, or hold what the
// types cannot.
#ifndef OPTSHARD_COMMON_ATTACH_ATTACHMENT_RPC_H_
#define OPTSHARD_COMMON_ATTACH_ATTACHMENT_RPC_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/attach/attachment.h"

namespace optshard {

std::string EncodeAttachRequest(const AttachRequest& request);
// FAILED_PRECONDITION for another protocol version, before anything else of it is looked at.
absl::StatusOr<AttachRequest> DecodeAttachRequest(absl::string_view bytes);

// The reply, or why there is none.
std::string EncodeAttachReply(const absl::StatusOr<AttachReply>& reply);
absl::StatusOr<AttachReply> DecodeAttachReply(absl::string_view bytes);

std::string EncodeGoodbye(const absl::Status& reason);
// The reason; it is never OK.
absl::Status DecodeGoodbye(absl::string_view bytes);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_ATTACH_ATTACHMENT_RPC_H_
