// Who is let in, and what the others are told.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/attach/attachment_rpc.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/local_socket.h"
#include "common/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/node/memory_need.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/in_child.h"
#include "tests/testing/other_user.h"

namespace optshard {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::NewNodeAddress;
using testing::NodeRig;
using testing::NodeTrainer;

absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

absl::Status Refusal(const AttachedOwner::Options& options) {
  return AttachedOwner::Attach(options).status();
}

// A server for the ranks 0 and 1 of two, in whose ranks nobody is.
AttachedOwner::Options Good(const NodeRig& rig) {
  AttachedOwner::Options options = rig.TrainerOptions(0);
  options.join_timeout = absl::Seconds(2);
  return options;
}

TEST(NodeAttach_WrongFacts_AreRefused, ShowingBothSides) {
  NodeRig rig(2);
  AttachedOwner::Options options = Good(rig);
  options.job = "another";
  absl::Status status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("job \"another\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"optshard\""));

  options = Good(rig);
  options.rank = 7;
  options.spec.world_size = 8;
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 7"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 0-1"));

  options = Good(rig);
  options.spec.world_size = 1;
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("world size is 1"));

  options = Good(rig);
  options.spec.world_size = 3;
  options.spec.share_parameters = true;
  status = Refusal(options);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("share_parameters"));

  options = Good(rig);
  options.spec.share_parameters = true;
  options.spec.policy = PartitionPolicy::kReplicated;
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"replicated\""));

  options = Good(rig);
  options.spec.rules[1].name = "unknown";
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("known rules: adadelta, adafactor, adagrad,"));

  options = Good(rig);
  options.spec.rules[1].hyperparameters.Set("lr", -1.0);
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("param group 1"));

  options = Good(rig);
  std::vector<GroupSpec> halves = options.spec.space.groups();
  halves[0].parameters[0].device = "cuda:0";
  options.spec.space = ParameterSpace(halves);
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("steps parameters on cpu only"));

  // The others go on.
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(1).ok()); });
}

TEST(NodeAttach_WayOfTheSteps, IsLoggedByTheTrainer) {
  NodeRig rig(2);
  ASSERT_TRUE(SetLogLevel("info").ok());
  ::testing::internal::CaptureStderr();
  const auto trainers = rig.StartAll();
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(SetLogLevel("warning").ok());
  for (Rank rank : {0, 1}) {
    EXPECT_THAT(log, HasSubstr(absl::StrCat(
                         "info client job=optshard rank=", rank,
                         " generation=1 steps run in one pass over the memory that all ranks")));
  }
}

// What a process that is not this program's may send.
absl::Status AnswerTo(const NodeRig& rig, const std::string& bytes) {
  auto socket = LocalSocket::Connect(rig.address(), In(absl::Seconds(5)));
  if (!socket.ok()) return socket.status();
  absl::Status sent = (*socket)->Send(bytes, {}, In(absl::Seconds(5)));
  if (!sent.ok()) return sent;
  auto answer = (*socket)->Receive(In(absl::Seconds(20)));
  if (!answer.ok()) return answer.status();
  return DecodeAttachReply(answer->bytes).status();
}

// As an AttachedOwner of two ranks would send it.
AttachRequest GoodRequest(Rank rank) {
  const AttachedOwner::Options good = NodeTrainer::DefaultOptions("", rank, 2);
  AttachRequest request;
  request.job = good.job;
  request.optimizer = good.optimizer;
  request.rank = rank;
  request.spec = good.spec;
  request.layout_digest = MemoryLayout(good.spec.space).Digest();
  request.node = good.node;
  return request;
}

TEST(NodeAttach_OtherProtocolOrLayout_IsRefused, BeforeAnythingIsMade) {
  NodeRig rig(2);
  AttachRequest request;
  for (const uint32_t version : {kAttachProtocolVersion - 1, kAttachProtocolVersion + 1}) {
    request.protocol_version = version;
    const absl::Status other = AnswerTo(rig, EncodeAttachRequest(request));
    EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr(absl::StrCat("version ", version)));
  }

  request = GoodRequest(0);
  request.layout_digest = 0x4711;
  absl::Status status = AnswerTo(rig, EncodeAttachRequest(request));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("0x0000000000004711"));

  EXPECT_TRUE(absl::IsInvalidArgument(AnswerTo(rig, "\xff garbage")));
}

// Whatever a trainer sends, the server says no at once and goes on.
TEST(NodeAttach_BeyondALimit_IsRefused, BeforeAnythingIsComputed) {
  NodeRig rig(2);
  const auto with = [](const std::function<void(AttachRequest&)>& change) {
    AttachRequest request = GoodRequest(0);
    change(request);
    return EncodeAttachRequest(request);
  };
  const struct {
    const char* error;
    std::string message;
  } cases[] = {
      {"the world size is 2147483647, expected at most 65536",
       with([](AttachRequest& r) { r.spec.world_size = std::numeric_limits<int>::max(); })},
      {"the partition policy \"greedy\" cut", with([](AttachRequest& r) {
         r.spec.space = ParameterSpace({GroupSpec{{{"a", {int64_t{1} << 50}}}}});
         r.spec.rules.resize(1);
         r.spec.state = StateOptions();
         r.spec.buckets.max_bytes = 64;
       })},
      {"the number of param groups is 1000000, expected at most", with([](AttachRequest& r) {
         r.spec.space = ParameterSpace(std::vector<GroupSpec>(1000000));
       })},
      {"param groups of 2 admissions, expected 1", with([](AttachRequest& r) {
         std::vector<GroupSpec> groups = r.spec.space.groups();
         groups.push_back({{{"added", {3}}}, 1});
         r.spec.space = ParameterSpace(std::move(groups));
         r.spec.rules.push_back(r.spec.rules[0]);
       })},
      {"the job's name has 1000000 bytes",
       with([](AttachRequest& r) { r.job = std::string(1000000, 'j'); })},
      {"the optimizer's name has 1000000 bytes",
       with([](AttachRequest& r) { r.optimizer = std::string(1000000, 'o'); })},
      {"the node's name has 1000000 bytes",
       with([](AttachRequest& r) { r.node = std::string(1000000, 'n'); })},
      {"threads = 2147483647",
       with([](AttachRequest& r) { r.threads = std::numeric_limits<int>::max(); })},
      {"param group 0: the number of hyperparameters is 100001", with([](AttachRequest& r) {
         for (int i = 0; i < 100000; ++i) r.spec.rules[0].hyperparameters.Set(absl::StrCat(i), 1.0);
       })},
  };
  for (const auto& each : cases) {
    const absl::Status status = AnswerTo(rig, each.message);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.error));
    EXPECT_LT(status.message().size(), 1000u);
  }
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(1).ok()); });
}

TEST(NodeAttach_BeyondTheMemoryLimit_IsRefused, WithNeedAndLimit) {
  NodeRig::Options options;
  options.owners.memory_limit_bytes = 40000;
  NodeRig rig(options);
  const absl::Status status = Refusal(Good(rig));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit is 40000"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer state"));
}

TEST(NodeAttach_RanksThatDoNotCome_AreNamed, AndTheRankMayTryAgain) {
  NodeRig rig(2);
  AttachedOwner::Options options = Good(rig);
  options.join_timeout = absl::Milliseconds(200);
  const absl::Status late = Refusal(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(errors::RanksOf(late), std::vector<Rank>{1}) << late;
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(1).ok()); });
}

TEST(NodeAttach_RankThatFailedToStart_GivesItsMemoryBack, ToTheNextTrainer) {
  const AttachRequest request = GoodRequest(0);
  const absl::StatusOr<MemoryNeed> need =
      MemoryNeedOf(request, MemoryLayout(request.spec.space), true, 1);
  ASSERT_TRUE(need.ok()) << need.status();
  NodeRig::Options rig_options;
  rig_options.owners.memory_limit_bytes = need->total() * 3 / 2;  // not for two
  NodeRig rig(rig_options);
  AttachedOwner::Options options = Good(rig);
  options.join_timeout = absl::Milliseconds(100);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const absl::Status late = Refusal(options);
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  }
}

TEST(NodeAttach_SecondTrainerOfARank_IsRefusedNamingTheFirst, WhichGoesOn) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  const absl::Status status = Refusal(Good(rig));
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("process ", getpid())));
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(1).ok()); });
}

TEST(NodeAttach_StoppedTrainer_IsNamedAsStopped, AndGoesOnWhenContinued) {
  const LocalAddress address = NewNodeAddress();
  int ready[2];
  int go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  char byte = 0;
  Child stopped([&] {
    auto trainer = NodeTrainer::Start(NodeTrainer::DefaultOptions(address, 0, 1));
    if (!trainer.ok() || write(ready[1], &byte, 1) != 1) return 1;
    if (read(go[0], &byte, 1) != 1) return 2;
    return (*trainer)->StepUntil(1).ok() ? 0 : 3;
  });
  NodeRig rig(1, address);
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(kill(stopped.pid(), SIGSTOP), 0);
  int state = 0;
  ASSERT_EQ(waitpid(stopped.pid(), &state, WUNTRACED), stopped.pid());
  const absl::Status status = Refusal(rig.TrainerOptions(0));
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("state T"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("-CONT ", stopped.pid())));
  ASSERT_EQ(kill(stopped.pid(), SIGCONT), 0);
  ASSERT_EQ(write(go[1], &byte, 1), 1);
  EXPECT_EQ(stopped.Wait(), 0);
}

TEST(NodeAttach_SuccessorOfAnotherKind_IsRefused, ShowingBothSides) {
  NodeRig rig(1);
  { ASSERT_TRUE(NodeTrainer::Start(rig.TrainerOptions(0)).ok()); }
  AttachedOwner::Options options = rig.TrainerOptions(0);
  options.spec.rules[1] = {"sgd"};
  absl::Status status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("update rule of param group 1: the rank's first trainer has \"lion\", the "
                        "trainer that attaches has \"sgd\""));
  options = rig.TrainerOptions(0);
  std::vector<GroupSpec> groups = options.spec.space.groups();
  groups[0].parameters[0].shape.push_back(1);
  options.spec.space = ParameterSpace(groups);
  status = Refusal(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter 0"));
}

TEST(NodeAttach_TrainerThatDiesWhileItAttaches_LeavesThePlace, ToAnotherOne) {
  const LocalAddress address = NewNodeAddress();
  int asked[2];
  ASSERT_EQ(pipe(asked), 0);
  char byte = 0;
  const std::string request = EncodeAttachRequest(GoodRequest(0));
  Child victim([&] {
    auto socket = LocalSocket::Connect(address, In(absl::Seconds(20)));
    if (!socket.ok() || !(*socket)->Send(request, {}, In(absl::Seconds(20))).ok()) return 1;
    if (write(asked[1], &byte, 1) != 1) return 2;
    // The answer does not come: rank 1 is not there.
    return (*socket)->Receive(In(absl::Seconds(20))).ok() ? 3 : 4;
  });
  NodeRig rig(2, address);
  ASSERT_EQ(read(asked[0], &byte, 1), 1);
  ASSERT_TRUE(rig.AwaitJoined(0));  // by then the victim has the place, or takes it
  victim.Kill();
  EXPECT_EQ(victim.Wait(), -SIGKILL);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(1).ok()); });
}

// An abstract name lets everybody connect, so the server checks who comes.
TEST(NodeAttach_AnotherUser_IsRefused, AndTheRankStaysFree) {
  if (!testing::KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  const LocalAddress address = NewNodeAddress();
  const std::string request = EncodeAttachRequest(GoodRequest(0));
  int listens[2];
  ASSERT_EQ(pipe(listens), 0);
  char byte = 0;
  Child stranger([&] {
    if (!testing::BecomeOtherUser()) return 100;
    if (read(listens[0], &byte, 1) != 1) return 101;
    const auto socket = testing::ConnectUnchecked(address);
    if (socket == nullptr) return 102;
    // It may be refused before it has said anything.
    socket->Send(request, {}, In(absl::Seconds(20))).IgnoreError();
    const auto answer = socket->Receive(In(absl::Seconds(20)));
    if (!answer.ok()) return 103;
    return static_cast<int>(DecodeAttachReply(answer->bytes).status().code());
  });
  NodeRig rig(2, address);
  EXPECT_EQ(write(listens[1], &byte, 1), 1);
  EXPECT_EQ(stranger.Wait(), static_cast<int>(absl::StatusCode::kPermissionDenied));
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(1).ok()); });
}

TEST(NodeAttach_AnotherUserHasTakenTheName_IsRefused, AndGetsNothing) {
  if (!testing::KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  const LocalAddress address = NewNodeAddress();
  testing::ForeignListener stranger(address);
  const absl::Status status = Refusal(NodeTrainer::DefaultOptions(address, 0, 1));
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_THAT(std::string(status.message()), HasSubstr("user 65534"));
  EXPECT_EQ(stranger.WhatCame(), "");
}

TEST(NodeAttach_ServerTwiceOnOneSocket_IsRefused, AndALinkToo) {
  // Test folders have names that are too long for a socket's.
  char folder[] = "/tmp/optshard-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  {
    NodeRig::Options options;
    options.world_size = 1;
    options.address = absl::StrCat(folder, "/s");
    NodeRig rig(options);
    EXPECT_TRUE(
        absl::IsAlreadyExists(AttachServer::Start(options.address, &rig.owners()).status()));
    const std::string link = absl::StrCat(folder, "/l");
    ASSERT_EQ(symlink(options.address.c_str(), link.c_str()), 0);
    EXPECT_TRUE(absl::IsInvalidArgument(AttachServer::Start(link, &rig.owners()).status()));
    unlink(link.c_str());
    EXPECT_TRUE(NodeTrainer::Start(rig.TrainerOptions(0)).ok());
  }
  EXPECT_EQ(rmdir(folder), 0) << "the server leaves nothing there";
}

TEST(NodeAttach_NoServer_IsUnavailable, NamingTheSocket) {
  AttachedOwner::Options options =
      NodeTrainer::DefaultOptions("@optshard-nobody-listens-here", 0, 1);
  options.join_timeout = absl::Milliseconds(50);
  const absl::Status status = Refusal(options);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("@optshard-nobody-listens-here"));
}

}  // namespace
}  // namespace optshard
