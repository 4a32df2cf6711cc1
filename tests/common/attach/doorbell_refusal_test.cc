// What an end of a doorbell does not take, whatever the other one has left.
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "common/attach/attachment.h"
#include "common/attach/doorbell.h"
#include "common/link/memory_budget.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/common/attach/doorbell_ends.h"

namespace optshard::testing {
namespace {

TEST(Doorbell_StateRequest_ForMoreThanTheWindow, IsRefusedAtBothEnds) {
  const DoorbellShape shape = {1, 1};
  Ends ends(shape);
  DoorbellRequest state;
  state.kind = DoorbellRequest::Kind::kReadState;
  state.state.elements = kStateWindowElements + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(ends.trainer.Ask(state).status()));
  const std::vector<double> many(kStateWindowElements + 1);
  state.state.elements = 1;
  state.values = many;
  EXPECT_TRUE(absl::IsInvalidArgument(ends.trainer.Ask(state).status()));
  EXPECT_FALSE(ends.server.WaitForRequest(In(absl::ZeroDuration())));

  state.values = {};
  DoorbellRequest taken;
  using Kind = DoorbellRequest::Kind;
  for (const Kind kind :
       {Kind::kReadState, Kind::kWriteState, Kind::kWriteStaged, Kind::kWriteStagedBytes}) {
    for (const int64_t elements : {kMaxShareBytes + 1, int64_t{-1}, int64_t{1} << 62}) {
      state.kind = kind;
      ASSERT_TRUE(ends.trainer.Ask(state).ok());
      // What a trainer writes that goes its own way: the line before the window.
      char* const window = reinterpret_cast<char*>(ends.trainer.state_window().data());
      std::memcpy(window - 64 + 16, &elements, sizeof elements);
      const absl::Status status = ends.server.Take(&taken);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_TRUE(taken.is_of_state()) << "nobody waits for it";
      ends.server.Answer(DoorbellReply());
    }
  }
}

TEST(Doorbell_TooMuch_IsRefused, BeforeAnythingIsAsked) {
  const DoorbellShape shape = {1, 1};
  Ends ends(shape);
  DoorbellRequest request = StepRequest(1);
  request.blob.resize(kMaxBlobBytes + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ends.trainer.Ask(request).status()));
  request = StepRequest(1);
  request.hyperparameters.resize(shape.hyperparameter_bytes() + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ends.trainer.Ask(request).status()));
  EXPECT_FALSE(ends.server.WaitForRequest(In(absl::ZeroDuration())));
  request = StepRequest(1);
  request.blob.resize(kMaxBlobBytes);
  request.hyperparameters.resize(shape.hyperparameter_bytes());
  ASSERT_TRUE(ends.trainer.Ask(request).ok());
  DoorbellRequest taken;
  ASSERT_TRUE(ends.server.Take(&taken).ok());
  EXPECT_EQ(taken.blob, request.blob);
  EXPECT_EQ(taken.hyperparameters, request.hyperparameters);
}

TEST(Doorbell_Garbage_IsRefusedOrTaken, AndNeverHarms) {
  const DoorbellShape shape = {100, 2};
  std::mt19937_64 random(4711);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    Ends ends(shape);
    // Whatever a process that went wild may have left, but a bell that rang.
    char* const memory = static_cast<char*>(ends.trainer.segment().data());
    for (size_t at = 8; at < 64; at += 8) {
      const uint64_t word = round % 3 == 0 ? random() : random() % 100;
      std::memcpy(memory + at, &word, sizeof word);
    }
    if (!ends.server.WaitForRequest(In(absl::ZeroDuration()))) continue;
    DoorbellRequest taken;
    const absl::Status status = ends.server.Take(&taken);
    if (!status.ok()) ++refused;
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status) || absl::IsCancelled(status))
        << status;
    EXPECT_LE(taken.blob.size(), kMaxBlobBytes);
    EXPECT_LE(taken.hyperparameters.size(), shape.hyperparameter_bytes());
    EXPECT_LE(taken.timeout, absl::Hours(24));
    DoorbellReply reply;
    reply.status = status;
    ends.server.Answer(reply);
  }
  EXPECT_GT(refused, 0);
}

TEST(Doorbell_AnotherShape_IsRefused, ByTheTrainer) {
  const Doorbell server = *Doorbell::Create(0, {1, 1}, MemoryBudget::Unlimited());
  const auto attached = Doorbell::Attach(0, {100000, 1}, UniqueFd(dup(server.segment().fd())));
  EXPECT_TRUE(absl::IsInvalidArgument(attached.status())) << attached.status();
  const auto other_rank = Doorbell::Attach(1, {1, 1}, UniqueFd(dup(server.segment().fd())));
  EXPECT_TRUE(absl::IsInvalidArgument(other_rank.status())) << other_rank.status();
}

}  // namespace
}  // namespace optshard::testing
