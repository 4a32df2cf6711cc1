// Which call of step() a trainer asks for: each is made once, however often it is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "client/owner/server_line.h"
#include "common/attach/attachment.h"
#include "common/attach/doorbell.h"
#include "common/clock.h"
#include "common/hyperparameter_bytes.h"
#include "common/memory_layout.h"
#include "tests/server/node/node_rig.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using testing::NodeRig;

constexpr absl::Duration kPatience = absl::Seconds(20);

// A trainer that writes its requests itself.
class NodeCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    const AttachedOwner::Options options = rig_.TrainerOptions(0);
    AttachRequest request;
    request.job = options.job;
    request.optimizer = options.optimizer;
    request.rank = 0;
    request.spec = options.spec;
    request.layout_digest = MemoryLayout(options.spec.space).Digest();
    request.node = options.node;
    request.join_timeout = kPatience;
    auto line = ServerLine::Open(options.socket, request, kPatience);
    ASSERT_TRUE(line.ok()) << line.status();
    line_ = *std::move(line);
    request_.timeout = kPatience;
    request_.hyperparameter_version = 1;
    request_.hyperparameters = EncodeHyperparameters({Hyperparameters(), Hyperparameters()});
    request_.kind = DoorbellRequest::Kind::kSync;
    ASSERT_TRUE(Ask(0, true).status.ok());
    request_.kind = DoorbellRequest::Kind::kStep;
  }

  DoorbellReply Ask(CallNumber call, bool with_gradients) {
    request_.call = call;
    request_.has_gradient.assign(rig_.TrainerOptions(0).spec.space.parameter_count(),
                                 with_gradients);
    const uint64_t number = line_->doorbell().Ask(request_).value();
    const absl::Time deadline = Clock::Monotonic().Now() + kPatience;
    while (!line_->doorbell().WaitForReply(number, deadline)) {
      if (Clock::Monotonic().Now() < deadline) continue;
      ADD_FAILURE() << "no reply to call " << call;
      break;
    }
    return line_->doorbell().ReadReply();
  }

  // Asks for it with gradients, and returns the finished step.
  StepNumber StepAfter(CallNumber call) {
    const DoorbellReply reply = Ask(call, true);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return reply.step;
  }

  NodeRig rig_{1};
  std::unique_ptr<ServerLine> line_;
  DoorbellRequest request_;
};

TEST_F(NodeCalls, AskedForAgain_AreAnsweredWithoutAnotherStep) {
  EXPECT_EQ(StepAfter(1), 1u);
  EXPECT_EQ(StepAfter(1), 1u);
  EXPECT_EQ(Ask(2, false).step, 1u) << "skipped";
  EXPECT_EQ(StepAfter(2), 1u) << "was skipped";
  EXPECT_EQ(StepAfter(3), 2u);
}

TEST_F(NodeCalls, ThatAreNotNext_AreRefusedAndNothingChanges) {
  EXPECT_EQ(StepAfter(1), 1u);
  for (const CallNumber call : {0, 3, 4}) {
    const DoorbellReply reply = Ask(call, true);
    EXPECT_TRUE(absl::IsInvalidArgument(reply.status)) << reply.status;
    EXPECT_THAT(reply.status.message(), HasSubstr("expected call 1 or 2"));
    EXPECT_FALSE(reply.broken);
  }
  EXPECT_EQ(StepAfter(2), 2u);
}

}  // namespace
}  // namespace optshard
