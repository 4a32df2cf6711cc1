#include "common/attach/attachment_rpc.h"

#include <sys/types.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/membership/common_proto.h"
#include "proto/optshard/v1/attach.pb.h"

namespace optshard {
namespace {

template <typename Message>
absl::Status Parse(absl::string_view bytes, absl::string_view name, Message* message) {
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes.size(), " bytes is no ", name,
                   "; is the process at the other end of the socket one of optshard's?"));
}

// Those that the trainer counts on from, and by which it finds a process.
absl::Status CheckNumbers(const v1::AttachResponse& proto) {
  absl::Status counts = CheckCount("finished_step", proto.finished_step());
  if (!counts.ok()) return counts;
  if (proto.last_call() < proto.finished_step()) {
    return absl::InvalidArgumentError(absl::StrCat("last_call is ", proto.last_call(),
                                                   ", expected at least finished_step, ",
                                                   proto.finished_step()));
  }
  counts = CheckCount("the number of skipped calls", proto.last_call() - proto.finished_step());
  if (!counts.ok()) return counts;
  if (proto.keeper_pid() < 0 || proto.keeper_pid() > std::numeric_limits<pid_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("keeper_pid is ", proto.keeper_pid(),
                                                   ", expected the number of a process, or 0"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeAttachRequest(const AttachRequest& request) {
  v1::AttachRequest proto;
  proto.set_protocol_version(request.protocol_version);
  proto.set_job(request.job);
  proto.set_optimizer(request.optimizer);
  proto.set_rank(request.rank);
  *proto.mutable_spec() = ToProto(request.spec);
  proto.set_layout_digest(request.layout_digest);
  proto.set_node(request.node);
  proto.set_threads(request.threads);
  proto.set_join_timeout_ms(absl::ToInt64Milliseconds(request.join_timeout));
  proto.set_device(request.device);
  proto.set_state_on_host(request.state_on_host);
  return proto.SerializeAsString();
}

absl::StatusOr<AttachRequest> DecodeAttachRequest(absl::string_view bytes) {
  v1::AttachRequest proto;
  const absl::Status parsed = Parse(bytes, "AttachRequest", &proto);
  if (!parsed.ok()) return parsed;
  if (proto.protocol_version() != kAttachProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the trainer of rank ", proto.rank(), " speaks version ", proto.protocol_version(),
        " of the attach protocol, this shard server version ", kAttachProtocolVersion,
        "; install the same release of optshard for both"));
  }
  absl::StatusOr<OptimizerSpec> spec = FromProto(proto.spec());
  if (!spec.ok()) return spec.status();
  AttachRequest request;
  request.protocol_version = proto.protocol_version();
  request.job = proto.job();
  request.optimizer = proto.optimizer();
  request.rank = proto.rank();
  request.spec = *std::move(spec);
  request.layout_digest = proto.layout_digest();
  request.node = proto.node();
  request.threads = proto.threads();
  request.join_timeout = absl::Milliseconds(proto.join_timeout_ms());
  request.device = proto.device();
  request.state_on_host = proto.state_on_host();
  return request;
}

std::string EncodeAttachReply(const absl::StatusOr<AttachReply>& reply) {
  v1::AttachResponse proto;
  *proto.mutable_status() = ToProto(reply.status());
  if (reply.ok()) {
    proto.set_incarnation(reply->incarnation);
    proto.set_resumes(reply->resumes);
    proto.set_finished_step(reply->finished_step);
    proto.set_last_call(reply->last_call);
    proto.set_blob(reply->blob);
    proto.set_blob_step(reply->blob_step);
    proto.set_generation(reply->generation);
    proto.set_owner_address(reply->owner_address);
    proto.set_coordinator(reply->coordinator);
    proto.set_state_bytes(reply->state_bytes);
    proto.set_parameters_rank(reply->parameters_rank);
    proto.set_keeper_pid(reply->keeper);
    proto.set_plane_notice(reply->plane.text);
    proto.set_plane_notice_is_warning(reply->plane.is_warning);
  }
  return proto.SerializeAsString();
}

absl::StatusOr<AttachReply> DecodeAttachReply(absl::string_view bytes) {
  v1::AttachResponse proto;
  const absl::Status parsed = Parse(bytes, "AttachResponse", &proto);
  if (!parsed.ok()) return parsed;
  const absl::Status status = FromProto(proto.status());
  if (!status.ok()) return status;
  absl::Status valid = CheckNumbers(proto);
  if (!valid.ok()) return errors::WithContext(valid, "the shard server's answer");
  AttachReply reply;
  reply.incarnation = proto.incarnation();
  reply.resumes = proto.resumes();
  reply.finished_step = proto.finished_step();
  reply.last_call = proto.last_call();
  reply.blob = proto.blob();
  reply.blob_step = proto.blob_step();
  reply.generation = proto.generation();
  reply.owner_address = proto.owner_address();
  reply.coordinator = proto.coordinator();
  reply.state_bytes = proto.state_bytes();
  reply.parameters_rank = proto.parameters_rank();
  reply.keeper = static_cast<pid_t>(proto.keeper_pid());
  reply.plane.text = proto.plane_notice();
  reply.plane.is_warning = proto.plane_notice_is_warning();
  return reply;
}

std::string EncodeAddGroupsRequest(const AddGroupsRequest& request) {
  v1::AddGroupsRequest proto;
  *proto.mutable_spec() = ToProto(request.spec);
  proto.set_layout_digest(request.layout_digest);
  if (!request.prepared.ok()) *proto.mutable_prepared() = ToProto(request.prepared);
  proto.set_timeout_ms(absl::ToInt64Milliseconds(request.timeout));
  proto.set_had(request.had);
  return proto.SerializeAsString();
}

absl::StatusOr<AddGroupsRequest> DecodeAddGroupsRequest(absl::string_view bytes) {
  v1::AddGroupsRequest proto;
  const absl::Status parsed = Parse(bytes, "AddGroupsRequest", &proto);
  if (!parsed.ok()) return parsed;
  absl::StatusOr<OptimizerSpec> spec = FromProto(proto.spec());
  if (!spec.ok()) return spec.status();
  AddGroupsRequest request;
  request.spec = *std::move(spec);
  request.layout_digest = proto.layout_digest();
  request.prepared = FromProto(proto.prepared());
  request.timeout = absl::Milliseconds(proto.timeout_ms());
  request.had = proto.had();
  return request;
}

std::string EncodeAddGroupsReply(const AddGroupsReply& reply) {
  v1::ServerMessage proto;
  v1::AddGroupsResponse& added = *proto.mutable_groups_added();
  *added.mutable_status() = ToProto(reply.status);
  added.set_broken(reply.broken);
  added.set_resumes(reply.resumes);
  added.set_state_bytes(reply.state_bytes);
  return proto.SerializeAsString();
}

std::string EncodeGoodbye(const absl::Status& reason) {
  v1::ServerMessage proto;
  *proto.mutable_goodbye()->mutable_reason() = ToProto(reason);
  return proto.SerializeAsString();
}

absl::StatusOr<ServerMessage> DecodeServerMessage(absl::string_view bytes) {
  v1::ServerMessage proto;
  absl::Status parsed = Parse(bytes, "ServerMessage", &proto);
  if (!parsed.ok()) return parsed;
  ServerMessage message;
  switch (proto.message_case()) {
    case v1::ServerMessage::kGoodbye:
      message.goodbye = FromProto(proto.goodbye().reason());
      if (message.goodbye->ok()) {
        message.goodbye = absl::UnavailableError("the shard server hangs up without a reason");
      }
      return message;
    case v1::ServerMessage::kGroupsAdded:
      message.groups_added.emplace();
      message.groups_added->status = FromProto(proto.groups_added().status());
      message.groups_added->broken = proto.groups_added().broken();
      message.groups_added->resumes = proto.groups_added().resumes();
      message.groups_added->state_bytes = proto.groups_added().state_bytes();
      return message;
    case v1::ServerMessage::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes.size(), " bytes is none that this release knows"));
}

}  // namespace optshard
