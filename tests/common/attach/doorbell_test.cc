// What the two ends of a doorbell tell each other.
#include "common/attach/doorbell.h"

#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/memory_budget.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/common/attach/doorbell_ends.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {
namespace {

TEST(Doorbell_Request_Arrives, Whole) {
  for (const int parameters : {0, 1, 63, 64, 65, 1000}) {
    Ends ends({parameters, 2});
    DoorbellRequest asked = StepRequest(parameters);
    asked.call = 7'000'000'000;
    asked.load_token = ~uint64_t{5};
    asked.writes = {~uint64_t{6}, false};
    EXPECT_EQ(*ends.trainer.Ask(asked), 1u);
    ASSERT_TRUE(ends.server.WaitForRequest(In(absl::ZeroDuration())));
    DoorbellRequest taken;
    ASSERT_TRUE(ends.server.Take(&taken).ok());
    EXPECT_EQ(taken.kind, DoorbellRequest::Kind::kStep);
    EXPECT_EQ(taken.timeout, asked.timeout);
    EXPECT_EQ(taken.call, asked.call);
    EXPECT_EQ(taken.load_token, asked.load_token);
    EXPECT_EQ(taken.writes.writes, asked.writes.writes);
    EXPECT_FALSE(taken.writes.are_expected);
    EXPECT_EQ(taken.has_gradient, asked.has_gradient);
    EXPECT_EQ(taken.hyperparameter_version, 1u);
    EXPECT_EQ(taken.hyperparameters, asked.hyperparameters);
    EXPECT_TRUE(taken.has_blob);
    EXPECT_EQ(taken.blob, asked.blob);
    EXPECT_FALSE(ends.server.WaitForRequest(In(absl::ZeroDuration()))) << "taken already";
  }
}

TEST(Doorbell_RowsOfSparseGradients, ArriveWithTheirRequestAlone) {
  DoorbellShape shape = {3, 1};
  shape.rows = {70, 0, 5};
  Ends ends(shape);
  const std::vector<uint64_t> first = {0x8000000000000001, 0x21};
  const std::vector<uint64_t> third = {0x13};
  DoorbellRequest asked = StepRequest(3);
  asked.row_marks = {first.data(), nullptr, third.data()};
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  DoorbellRequest taken;
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  ASSERT_EQ(taken.row_marks.size(), 3u);
  EXPECT_EQ(std::vector<uint64_t>(taken.row_marks[0], taken.row_marks[0] + 2), first);
  EXPECT_EQ(taken.row_marks[1], nullptr);
  EXPECT_EQ(*taken.row_marks[2], third[0]);
  EXPECT_EQ(taken.hyperparameters, asked.hyperparameters);
  const std::vector<uint64_t> other = {0x0c};
  asked.row_marks = {nullptr, nullptr, other.data()};
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.row_marks[0], nullptr);
  EXPECT_EQ(*taken.row_marks[2], other[0]);
  asked.row_marks.clear();
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.row_marks[2], nullptr);
}

TEST(Doorbell_Hyperparameters_AreWrittenAnew, OnlyWithAnotherVersion) {
  Ends ends({1, 1});
  DoorbellRequest asked = StepRequest(1);
  DoorbellRequest taken;
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  asked.hyperparameters = "ignored";
  asked.has_blob = false;
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.hyperparameters, std::string("lr\0=1", 5));
  EXPECT_FALSE(taken.has_blob);
  asked.hyperparameter_version = 2;
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.hyperparameters, "ignored");
}

TEST(Doorbell_StateRequest_Arrives, AndLeavesTheStepsPartsAlone) {
  Ends ends({5, 2});
  DoorbellRequest asked = StepRequest(5);
  DoorbellRequest taken;
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());

  const std::vector<double> values = {0.5, -1e300, 3};
  DoorbellRequest state;
  state.kind = DoorbellRequest::Kind::kWriteState;
  state.timeout = absl::Seconds(3);
  state.state = {4, 2, int64_t{1} << 40, 3};
  state.values = values;
  ASSERT_TRUE(ends.trainer.Ask(state).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.kind, DoorbellRequest::Kind::kWriteState);
  EXPECT_EQ(taken.timeout, absl::Seconds(3));
  EXPECT_EQ(taken.state.parameter, 4);
  EXPECT_EQ(taken.state.slot, 2);
  EXPECT_EQ(taken.state.offset_elements, int64_t{1} << 40);
  EXPECT_EQ(taken.state.elements, 3);
  EXPECT_EQ(taken.values, absl::MakeConstSpan(values));
  ends.trainer.state_window()[0] = 7;
  EXPECT_EQ(taken.values[0], 0.5) << "it was not copied";

  state.kind = DoorbellRequest::Kind::kReadState;
  state.state.elements = kStateWindowElements;
  state.values = {};
  const uint64_t number = ends.trainer.Ask(state).value();
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  ASSERT_EQ(taken.kind, DoorbellRequest::Kind::kReadState);
  ends.server.state_window()[kStateWindowElements - 1] = 8;
  ends.server.Answer(DoorbellReply());
  ASSERT_TRUE(ends.trainer.WaitForReply(number, Far()));
  EXPECT_EQ(ends.trainer.state_window()[kStateWindowElements - 1], 8);

  EXPECT_EQ(taken.has_gradient, asked.has_gradient);
  EXPECT_EQ(taken.blob, asked.blob);
  asked.has_blob = false;
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.kind, DoorbellRequest::Kind::kStep);
  EXPECT_EQ(taken.hyperparameters, asked.hyperparameters);
}

TEST(Doorbell_StagedBytes_Arrive, AndTheSlotTheyAreOf) {
  Ends ends({5, 2});
  std::string bytes(kMaxShareBytes, 'a');
  DoorbellRequest asked;
  asked.kind = DoorbellRequest::Kind::kWriteStagedBytes;
  asked.timeout = absl::Seconds(3);
  asked.bytes = bytes;
  for (const int slot : {-1, 3}) {
    asked.state = {4, slot, 9, static_cast<int64_t>(bytes.size())};
    ASSERT_TRUE(ends.trainer.Ask(asked).ok());
    DoorbellRequest taken;
    ASSERT_TRUE(ends.server.Take(&taken).ok());
    EXPECT_EQ(taken.kind, DoorbellRequest::Kind::kWriteStagedBytes);
    EXPECT_EQ(taken.state.parameter, 4);
    EXPECT_EQ(taken.state.slot, slot);
    EXPECT_EQ(taken.state.offset_elements, 9);
    EXPECT_EQ(std::string(taken.bytes.begin(), taken.bytes.end()), bytes);
    EXPECT_TRUE(taken.is_of_state());
    ends.server.Answer(DoorbellReply());
  }
  bytes += 'a';
  asked.bytes = bytes;
  EXPECT_TRUE(absl::IsInvalidArgument(ends.trainer.Ask(asked).status()));
}

TEST(Doorbell_SharedBytes_Arrive, AndComeBackAsTheServerLeavesThem) {
  Ends ends({5, 2});
  std::string bytes(kMaxShareBytes, 'a');
  DoorbellRequest asked;
  asked.kind = DoorbellRequest::Kind::kShareBytes;
  asked.timeout = absl::Seconds(3);
  asked.share = {ShareCall::kLoad, 7, absl::MakeSpan(&bytes[0], bytes.size()), 4000000000};
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  DoorbellRequest taken;
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.kind, DoorbellRequest::Kind::kShareBytes);
  EXPECT_EQ(taken.timeout, absl::Seconds(3));
  EXPECT_EQ(taken.share.call, ShareCall::kLoad);
  EXPECT_EQ(taken.share.from, 7);
  EXPECT_EQ(taken.share.position, 4000000000);
  ASSERT_EQ(taken.share.bytes.size(), bytes.size());
  EXPECT_EQ(taken.share.bytes.back(), 'a');
  taken.share.bytes.back() = 'b';
  ends.server.Answer(DoorbellReply());
  EXPECT_EQ(ends.trainer.share_window().back(), 'b');

  bytes += 'a';
  asked.share.bytes = absl::MakeSpan(&bytes[0], bytes.size());
  EXPECT_TRUE(absl::IsInvalidArgument(ends.trainer.Ask(asked).status()));
  // What a trainer writes that goes its own way: the line before the window.
  char* const window = ends.trainer.share_window().data();
  for (const int64_t wrong : {kMaxShareBytes + 1, int64_t{-1}}) {
    asked.share.bytes = {};
    ASSERT_TRUE(ends.trainer.Ask(asked).ok());
    std::memcpy(window - 64 + 16, &wrong, sizeof wrong);
    const absl::Status status = ends.server.Take(&taken);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    ends.server.Answer(DoorbellReply());
  }
  asked.share.call = static_cast<ShareCall>(3);
  ASSERT_TRUE(ends.trainer.Ask(asked).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ends.server.Take(&taken)));
}

TEST(Doorbell_Reply_Arrives, WithValuesAndStatus) {
  Ends ends({1, 1});
  const uint64_t first = *ends.trainer.Ask(StepRequest(1));
  EXPECT_FALSE(ends.trainer.WaitForReply(first, In(absl::ZeroDuration())));
  DoorbellRequest taken;
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  DoorbellReply reply;
  reply.step = 41;
  reply.prepare = absl::Microseconds(1);
  reply.commit = absl::Microseconds(2);
  reply.apply = absl::Microseconds(3);
  ends.server.Answer(reply);
  ASSERT_TRUE(ends.trainer.WaitForReply(first, Far()));
  DoorbellReply read = ends.trainer.ReadReply();
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.step, 41u);
  EXPECT_FALSE(read.broken);
  EXPECT_EQ(read.prepare, absl::Microseconds(1));
  EXPECT_EQ(read.commit, absl::Microseconds(2));
  EXPECT_EQ(read.apply, absl::Microseconds(3));

  const uint64_t second = *ends.trainer.Ask(StepRequest(1));
  EXPECT_EQ(second, 2u);
  EXPECT_FALSE(ends.trainer.WaitForReply(second, In(absl::ZeroDuration())));
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  reply.status = errors::TrainerGone({1, 2}, "killed");
  reply.broken = true;
  ends.server.Answer(reply);
  ASSERT_TRUE(ends.trainer.WaitForReply(second, Far()));
  EXPECT_EQ(ends.trainer.ReadReply().status, reply.status);
  EXPECT_TRUE(ends.trainer.ReadReply().broken);
}

TEST(Doorbell_WithdrawnRequest_IsCancelled_UnlessItWasBegun, AndTheNextOneArrives) {
  Ends ends({1, 1});
  DoorbellRequest asked = StepRequest(1);
  const uint64_t first = *ends.trainer.Ask(asked);
  EXPECT_TRUE(ends.trainer.Withdraw(first));
  ASSERT_TRUE(ends.server.WaitForRequest(In(absl::ZeroDuration())));
  DoorbellRequest taken;
  EXPECT_TRUE(absl::IsCancelled(ends.server.Take(&taken)));
  ends.server.Answer(DoorbellReply());

  asked.timeout = absl::Seconds(8);
  const uint64_t second = *ends.trainer.Ask(asked);
  EXPECT_FALSE(ends.trainer.WaitForReply(second, In(absl::ZeroDuration()))) << "the first's answer";
  ASSERT_TRUE(ends.server.WaitForRequest(In(absl::ZeroDuration())));
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.timeout, absl::Seconds(8));
  EXPECT_EQ(taken.hyperparameters, asked.hyperparameters);
  EXPECT_FALSE(ends.trainer.Withdraw(second));
}

TEST(Doorbell_LongStatus_IsCut, AndKeepsItsRanks) {
  Ends ends({1, 1});
  ASSERT_TRUE(ends.trainer.Ask(StepRequest(1)).ok());
  DoorbellRequest taken;
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  DoorbellReply reply;
  reply.status = errors::TrainerGone({1}, std::string(100000, 'x'));
  ends.server.Answer(reply);
  const absl::Status read = ends.trainer.ReadReply().status;
  EXPECT_TRUE(errors::IsTrainerGone(read));
  EXPECT_EQ(errors::RanksOf(read), std::vector<Rank>{1});
  EXPECT_LT(read.message().size(), 5000u);
  EXPECT_EQ(read.message(), reply.status.message().substr(0, read.message().size()));
}

TEST(Doorbell_Wake_BeforeTheWait_EndsIt, AtBothEnds) {
  Ends ends({1, 1});
  const uint64_t number = *ends.trainer.Ask(StepRequest(1));
  DoorbellRequest taken;
  ASSERT_TRUE(ends.server.WaitForRequest(Far()));
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  ends.server.WakeServer();
  ends.trainer.WakeTrainer();
  const absl::Time start = Clock::Monotonic().Now();
  EXPECT_FALSE(ends.server.WaitForRequest(Far()));
  EXPECT_FALSE(ends.trainer.WaitForReply(number, Far()));
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(20));
}

TEST(Doorbell_TwoProcesses_StepManyTimes, WithoutLosingARing) {
  constexpr uint64_t kSteps = 2000;
  Doorbell server = *Doorbell::Create(0, {10, 1}, MemoryBudget::Unlimited());
  Child trainer([&] {
    Doorbell doorbell = *Doorbell::Attach(0, {10, 1}, UniqueFd(dup(server.segment().fd())));
    DoorbellRequest request = StepRequest(10);
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const uint64_t number = *doorbell.Ask(request);
      while (!doorbell.WaitForReply(number, Far())) {
      }
      if (doorbell.ReadReply().step != step) return 1;
    }
    return 0;
  });
  DoorbellRequest taken;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    while (!server.WaitForRequest(Far())) {
    }
    ASSERT_TRUE(server.Take(&taken).ok());
    DoorbellReply reply;
    reply.step = step;
    server.Answer(reply);
  }
  EXPECT_EQ(trainer.Wait(), 0);
}

}  // namespace
}  // namespace optshard::testing
