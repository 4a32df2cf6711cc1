// Encodes the messages of proto/optshard/v1/attach.proto for a local socket, and decodes them. What
// is decoded is not trusted: bytes that are not such a message, or that hold a value which the
// types cannot hold or common/request_limits.h does not allow, are INVALID_ARGUMENT.
#ifndef OPTSHARD_COMMON_ATTACH_ATTACHMENT_RPC_H_
#define OPTSHARD_COMMON_ATTACH_ATTACHMENT_RPC_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/attach/attachment.h"

namespace optshard {

std::string EncodeAttachRequest(const AttachRequest& request);
// FAILED_PRECONDITION for another protocol version, which is checked before anything else.
absl::StatusOr<AttachRequest> DecodeAttachRequest(absl::string_view bytes);

// The reply, or why there is none.
std::string EncodeAttachReply(const absl::StatusOr<AttachReply>& reply);
absl::StatusOr<AttachReply> DecodeAttachReply(absl::string_view bytes);

std::string EncodeAddGroupsRequest(const AddGroupsRequest& request);
absl::StatusOr<AddGroupsRequest> DecodeAddGroupsRequest(absl::string_view bytes);

// ServerMessages.
std::string EncodeAddGroupsReply(const AddGroupsReply& reply);
std::string EncodeGoodbye(const absl::Status& reason);
absl::StatusOr<ServerMessage> DecodeServerMessage(absl::string_view bytes);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_ATTACH_ATTACHMENT_RPC_H_
