// What a trainer asks for at its doorbell: each call of step() is made once, however often it is
// asked for, and state is given and taken only where there is some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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
    return AnswerTo(request_);
  }

  DoorbellReply AskForState(DoorbellRequest::Kind kind, const StateRange& range,
                            const std::vector<double>& values = {}) {
    DoorbellRequest request;
    request.kind = kind;
    request.timeout = kPatience;
    request.state = range;
    request.values = values;
    return AnswerTo(request);
  }

  // A parameter's elements in a slot of its rule's.
  std::vector<double> StateOf(int parameter) {
    const int64_t elements = rig_.TrainerOptions(0).spec.space.parameter(parameter).elements();
    const DoorbellReply reply =
        AskForState(DoorbellRequest::Kind::kReadState, {parameter, 0, 0, elements});
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    const absl::Span<const double> window = line_->doorbell().state_window();
    return {window.begin(), window.begin() + elements};
  }

  DoorbellReply AnswerTo(const DoorbellRequest& request) {
    const uint64_t number = line_->doorbell().Ask(request).value();
    const absl::Time deadline = Clock::Monotonic().Now() + kPatience;
    while (!line_->doorbell().WaitForReply(number, deadline)) {
      if (Clock::Monotonic().Now() < deadline) continue;
      ADD_FAILURE() << "no reply to request " << number;
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

TEST_F(NodeCalls, ForState_AreNoCallsOfStep) {
  EXPECT_EQ(StepAfter(1), 1u);
  const std::vector<double> before = StateOf(0);
  std::vector<double> other = before;
  for (double& value : other) value = 0.25;
  EXPECT_NE(before, other);
  const DoorbellReply written = AskForState(DoorbellRequest::Kind::kWriteState,
                                            {0, 0, 0, static_cast<int64_t>(other.size())}, other);
  EXPECT_TRUE(written.status.ok()) << written.status;
  EXPECT_EQ(StateOf(0), other);
  EXPECT_EQ(StepAfter(2), 2u);
  EXPECT_NE(StateOf(0), other);
}

TEST_F(NodeCalls, ForStateThatIsNotThere_AreRefusedAndNothingChanges) {
  EXPECT_EQ(StepAfter(1), 1u);
  const std::vector<double> before = StateOf(0);
  const auto elements = static_cast<int64_t>(before.size());
  const int parameters = rig_.TrainerOptions(0).spec.space.parameter_count();
  const StateRange ranges[] = {{-1, 0, 0, 1},       {parameters, 0, 0, 1},
                               {0, -1, 0, 1},       {0, 100, 0, 1},
                               {0, 0, -1, 2},       {0, 0, 1, elements},
                               {0, 0, elements, 1}, {0, 0, int64_t{1} << 62, 1},
                               {0, 0, 0, -1},       {0, 0, 1, -(int64_t{1} << 62)}};
  for (const auto kind : {DoorbellRequest::Kind::kReadState, DoorbellRequest::Kind::kWriteState}) {
    for (const StateRange& range : ranges) {
      const std::vector<double> values(std::max<int64_t>(range.elements, 0), 9);
      const DoorbellReply reply = AskForState(
          kind, range, kind == DoorbellRequest::Kind::kWriteState ? values : std::vector<double>());
      EXPECT_TRUE(absl::IsInvalidArgument(reply.status)) << reply.status;
      EXPECT_FALSE(reply.broken);
    }
  }
  EXPECT_EQ(StateOf(0), before);
  EXPECT_EQ(StepAfter(2), 2u);
}

}  // namespace
}  // namespace optshard
