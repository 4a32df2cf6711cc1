#include "common/attach/attachment_rpc.h"

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/memory_layout.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/attach.pb.h"
#include "tests/testing/same_fields.h"

namespace optshard {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SameFields;

v1::AttachRequest MessageOf(const AttachRequest& request) {
  v1::AttachRequest message;
  EXPECT_TRUE(message.ParseFromString(EncodeAttachRequest(request)));
  return message;
}

v1::AttachResponse MessageOf(const AttachReply& reply) {
  v1::AttachResponse message;
  EXPECT_TRUE(message.ParseFromString(EncodeAttachReply(reply)));
  return message;
}

Hyperparameters SomeHyperparameters() {
  Hyperparameters values;
  values.Set("lr", 0.1);
  values.Set("amsgrad", true);
  values.Set("betas", Numbers{0.5, 0.75});
  return values;
}

AttachRequest SomeRequest() {
  AttachRequest request;
  request.job = "job";
  request.optimizer = "generator";
  request.rank = 2;
  request.spec.world_size = 4;
  ParameterSpec parameter;
  parameter.name = "fc.weight";
  parameter.shape = {10, 64};
  parameter.update_cost = 640;
  parameter.dtype = DType::kBFloat16;
  parameter.main_gradient = true;
  ParameterSpec later = parameter;
  later.name = "fc.more";
  GroupSpec first = {{parameter, later}, 0, {{1, 2}}};
  GroupSpec added;
  added.admission = 1;
  request.spec.space = ParameterSpace({first, added});
  request.layout_digest = MemoryLayout(request.spec.space).Digest();
  request.spec.rules = {{"adam", SomeHyperparameters()}, {"sgd"}};
  request.spec.gradient_mode = GradientMode::kAveraged;
  request.spec.policy = PartitionPolicy::kBalanced;
  request.spec.buckets = {123, 45};
  request.node = "here";
  request.threads = 3;
  request.join_timeout = absl::Milliseconds(1500);
  request.device = "GPU 17";
  request.state_on_host = true;
  request.spec.share_parameters = true;
  request.spec.state.master_weights = true;
  request.spec.state.master_weight_bits = 24;
  request.spec.state.publish_dtype = DType::kFloat16;
  request.spec.state.format = StateFormat::kInt8Companded;
  return request;
}

TEST(AttachRequest_ThereAndBack, IsTheSame) {
  const AttachRequest sent = SomeRequest();
  const absl::StatusOr<AttachRequest> came = DecodeAttachRequest(EncodeAttachRequest(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(MessageDifferencer::Equals(MessageOf(*came), MessageOf(sent)));
  // Another protocol version would be refused.
  EXPECT_THAT(SameFields(MessageOf(sent), MessageOf(AttachRequest())),
              ElementsAre("protocol_version"));
  EXPECT_EQ(came->job, sent.job);
  EXPECT_EQ(came->optimizer, sent.optimizer);
  EXPECT_EQ(came->rank, sent.rank);
  EXPECT_EQ(came->spec.world_size, sent.spec.world_size);
  EXPECT_EQ(came->layout_digest, sent.layout_digest);
  EXPECT_EQ(came->spec.space.Digest(), sent.spec.space.Digest());
  ASSERT_EQ(came->spec.rules.size(), sent.spec.rules.size());
  for (size_t g = 0; g < sent.spec.rules.size(); ++g) {
    EXPECT_EQ(came->spec.rules[g].name, sent.spec.rules[g].name);
    EXPECT_EQ(came->spec.rules[g].hyperparameters, sent.spec.rules[g].hyperparameters);
  }
  EXPECT_EQ(came->spec.gradient_mode, sent.spec.gradient_mode);
  EXPECT_EQ(came->spec.policy, sent.spec.policy);
  EXPECT_EQ(came->spec.buckets.max_bytes, sent.spec.buckets.max_bytes);
  EXPECT_EQ(came->spec.buckets.pack_below_bytes, sent.spec.buckets.pack_below_bytes);
  EXPECT_EQ(came->node, sent.node);
  EXPECT_EQ(came->threads, sent.threads);
  EXPECT_EQ(came->join_timeout, sent.join_timeout);
  EXPECT_EQ(came->device, sent.device);
  EXPECT_EQ(came->state_on_host, sent.state_on_host);
  EXPECT_EQ(came->spec.share_parameters, sent.spec.share_parameters);
}

TEST(AttachRequest_AnotherProtocolVersion_IsRefused, ShowingBoth) {
  AttachRequest request = SomeRequest();
  for (const uint32_t version : {kAttachProtocolVersion - 1, kAttachProtocolVersion + 1}) {
    request.protocol_version = version;
    const absl::Status status = DecodeAttachRequest(EncodeAttachRequest(request)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    for (const uint32_t shown : {version, kAttachProtocolVersion}) {
      EXPECT_NE(status.message().find(absl::StrCat("version ", shown)), absl::string_view::npos)
          << status;
    }
  }
}

TEST(AttachMessages_BytesOfSomethingElse_AreRefused, ByAll) {
  const std::string garbage("\xff\xff\xff garbage");
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeAttachRequest(garbage).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeAttachReply(garbage).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeAddGroupsRequest(garbage).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeServerMessage(garbage).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeServerMessage("").status()));
  // A message without a policy is no trainer's.
  EXPECT_FALSE(DecodeAttachRequest("").ok());
}

TEST(AttachReply_ThereAndBack, IsTheSame) {
  AttachReply sent;
  sent.incarnation = 3;
  sent.resumes = true;
  sent.finished_step = 12;
  sent.last_call = 70000;
  sent.keeper = 4711;
  sent.blob = std::string("\0\1", 2);
  sent.blob_step = 11;
  sent.generation = 5;
  sent.owner_address = "127.0.0.1:9";
  sent.coordinator = "127.0.0.1:8";
  sent.state_bytes = int64_t{1} << 40;
  sent.parameters_rank = 1;
  sent.plane = {"steps fly", true};
  const absl::StatusOr<AttachReply> came = DecodeAttachReply(EncodeAttachReply(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(MessageDifferencer::Equals(MessageOf(*came), MessageOf(sent)));
  // The status of a reply is OK: an error goes instead of it.
  EXPECT_THAT(SameFields(MessageOf(sent), MessageOf(AttachReply())),
              ElementsAre("status.code", "status.message", "status.payload"));
  EXPECT_EQ(came->incarnation, sent.incarnation);
  EXPECT_EQ(came->resumes, sent.resumes);
  EXPECT_EQ(came->finished_step, sent.finished_step);
  EXPECT_EQ(came->blob, sent.blob);
  EXPECT_EQ(came->blob_step, sent.blob_step);
  EXPECT_EQ(came->generation, sent.generation);
  EXPECT_EQ(came->owner_address, sent.owner_address);
  EXPECT_EQ(came->coordinator, sent.coordinator);
  EXPECT_EQ(came->state_bytes, sent.state_bytes);
  EXPECT_EQ(came->parameters_rank, sent.parameters_rank);
  EXPECT_EQ(came->plane.text, sent.plane.text);
  EXPECT_EQ(came->plane.is_warning, sent.plane.is_warning);
}

TEST(AttachReply_NumbersThatNoServerHas, AreRefusedByName) {
  const auto refusal = [](const std::function<void(AttachReply&)>& change) {
    AttachReply reply;
    change(reply);
    return std::string(DecodeAttachReply(EncodeAttachReply(reply)).status().message());
  };
  EXPECT_THAT(refusal([](AttachReply& reply) { reply.finished_step = ~StepNumber{0}; }),
              HasSubstr("finished_step is 18446744073709551615"));
  EXPECT_THAT(refusal([](AttachReply& reply) { reply.finished_step = 1; }),
              HasSubstr("last_call is 0, expected at least finished_step, 1"));
  EXPECT_THAT(refusal([](AttachReply& reply) { reply.last_call = ~CallNumber{0}; }),
              HasSubstr("the number of skipped calls is 18446744073709551615"));
  EXPECT_THAT(refusal([](AttachReply& reply) { reply.keeper = -1; }),
              HasSubstr("keeper_pid is -1"));
}

TEST(AttachReply_AnError_KeepsItsKindAndRanks, ThereAndBack) {
  const absl::Status sent = errors::PeersTimedOut({1, 3}, "joining");
  const absl::Status came = DecodeAttachReply(EncodeAttachReply(sent)).status();
  EXPECT_EQ(came, sent);
  EXPECT_EQ(errors::RanksOf(came), (std::vector<Rank>{1, 3}));
}

TEST(Goodbye_ThereAndBack, IsTheReason) {
  const auto back = [](const absl::Status& reason) {
    return *DecodeServerMessage(EncodeGoodbye(reason))->goodbye;
  };
  EXPECT_EQ(back(absl::UnavailableError("shutting down")), absl::UnavailableError("shutting down"));
  EXPECT_FALSE(back(absl::OkStatus()).ok());
}

v1::AddGroupsRequest MessageOf(const AddGroupsRequest& request) {
  v1::AddGroupsRequest message;
  EXPECT_TRUE(message.ParseFromString(EncodeAddGroupsRequest(request)));
  return message;
}

TEST(AddGroupsRequest_ThereAndBack, IsTheSame) {
  AddGroupsRequest sent;
  sent.spec = SomeRequest().spec;
  sent.layout_digest = 4711;
  sent.prepared = errors::PeersTimedOut({1}, "no memory");
  sent.timeout = absl::Milliseconds(1500);
  sent.had = true;
  const absl::StatusOr<AddGroupsRequest> came =
      DecodeAddGroupsRequest(EncodeAddGroupsRequest(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(MessageDifferencer::Equals(MessageOf(*came), MessageOf(sent)));
  EXPECT_THAT(SameFields(MessageOf(sent), MessageOf(AddGroupsRequest())), ElementsAre());
  EXPECT_EQ(came->prepared, sent.prepared);
  sent.prepared = absl::OkStatus();
  EXPECT_EQ(DecodeAddGroupsRequest(EncodeAddGroupsRequest(sent))->prepared, absl::OkStatus());
}

TEST(AddGroupsReply_ThereAndBack, IsTheSame) {
  AddGroupsReply sent;
  sent.status = errors::OwnerAway({3}, "it comes back");
  sent.broken = true;
  sent.resumes = true;
  sent.state_bytes = int64_t{1} << 40;
  const absl::StatusOr<ServerMessage> came = DecodeServerMessage(EncodeAddGroupsReply(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_FALSE(came->goodbye.has_value());
  ASSERT_TRUE(came->groups_added.has_value());
  EXPECT_EQ(came->groups_added->status, sent.status);
  EXPECT_TRUE(came->groups_added->broken);
  EXPECT_TRUE(came->groups_added->resumes);
  EXPECT_EQ(came->groups_added->state_bytes, sent.state_bytes);
}

}  // namespace
}  // namespace optshard
