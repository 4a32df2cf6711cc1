// What ranks tell each other in one call, also where some of them have begun it again.
#include "client/owner/rank_exchange.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/owner/call_attempts.h"
#include "client/owner/embedded_owner.h"
#include "client/rule_options.h"
#include "client/status_error.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

// Calls `body` on every rank, with exchanges by an owner of its own.
void OnEveryRank(const std::function<void(const RankExchange::Options&)>& body) {
  testing::ExpectAllOk(testing::RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    const RuleOptions rule = RuleOptions("sgd").Set("lr", 0.25);
    ParameterSpec parameter;
    parameter.name = "weight";
    parameter.shape = {1};
    OptimizerSpec spec;
    spec.world_size = kRanks;
    spec.space = ParameterSpace({{{parameter}}});
    spec.rules = {{rule.rule(), rule.Complete().values()}};
    const std::unique_ptr<OwnerLink> owner =
        ValueOrThrow(StartEmbeddedOwner(options, spec, {}, /*replaces=*/false));
    RankExchange::Options exchange;
    exchange.owner = owner.get();
    exchange.call = ShareCall::kLoad;
    exchange.rank = options.rank;
    exchange.world_size = kRanks;
    exchange.timeout = absl::Seconds(20);
    body(exchange);
    ThrowIfError(owner->Stop(absl::Seconds(20)));
  }));
}

TEST(RankExchangeTest, AgreedError_IsOfTheSameKindAndNamesTheSameRanksEverywhere) {
  OnEveryRank([](const RankExchange::Options& options) {
    RankExchange exchange(options);
    const absl::Status all = exchange.Agree(
        options.rank == 1 ? errors::OwnerAway({1}, "a line\nand another") : absl::OkStatus());
    EXPECT_TRUE(errors::IsOwnerAway(all)) << all;
    EXPECT_THAT(errors::RanksOf(all), ElementsAre(1));
    EXPECT_THAT(std::string(all.message()), HasSubstr("rank 1: "));
    EXPECT_THAT(std::string(all.message()), HasSubstr("a line\nand another"));
    const absl::Status plain = exchange.Agree(
        options.rank == 2 ? absl::DataLossError("a file\nis damaged") : absl::OkStatus());
    EXPECT_EQ(plain, absl::DataLossError("rank 2: a file\nis damaged"));
    EXPECT_EQ(exchange.Agree(absl::OkStatus()), absl::OkStatus());
  });
}

// Each rank in turn begins again while the others go on, of which each has come to another exchange
// than that.
TEST(RankExchangeTest, RanksAtOtherExchanges_AreAllToldSoAndNobodyGetsAnothersNumbers) {
  OnEveryRank([](const RankExchange::Options& options) {
    for (int made = 1; made <= 3; ++made) {
      for (Rank again = 0; again < kRanks; ++again) {
        RankExchange before(options);
        for (int i = 0; i < made; ++i) EXPECT_TRUE(before.Gather(i).ok());
        RankExchange anew(options);
        const auto mixed = (options.rank == again ? anew : before).Gather(7);
        EXPECT_TRUE(absl::IsAborted(mixed.status())) << mixed.status();
      }
    }
    RankExchange together(options);
    EXPECT_EQ(together.Gather(options.rank).value(), (std::vector<uint64_t>{0, 1, 2}));
  });
}

TEST(CallAttemptsTest, RankThatBeginsAgain_HasAllBeginAgainTogether) {
  OnEveryRank([](const RankExchange::Options& options) {
    int attempts = 0;
    const absl::Status done = CallInAttempts(options, [&](RankExchange& exchange) {
      ++attempts;
      for (int i = 0; i < 3; ++i) {
        // Its server has died and come back, which the others do not notice.
        if (attempts == 1 && i == 2 && options.rank == 1) return errors::OwnerAway({1}, "");
        const uint64_t first = uint64_t{10} * i;
        const auto all = exchange.Gather(first + options.rank);
        if (!all.ok()) return all.status();
        EXPECT_EQ(*all, (std::vector<uint64_t>{first, first + 1, first + 2}));
      }
      return absl::OkStatus();
    });
    EXPECT_EQ(done, absl::OkStatus());
    EXPECT_EQ(attempts, options.rank == 1 ? 3 : 2);
  });
}

TEST(CallAttemptsTest, CallThatFailsEachTimeAfterItHasBegun_EndsAfterEight) {
  OnEveryRank([](const RankExchange::Options& options) {
    int attempts = 0;
    const absl::Status done = CallInAttempts(options, [&](RankExchange& exchange) {
      ++attempts;
      const absl::Status agreed = exchange.Agree(absl::OkStatus());
      return agreed.ok() ? exchange.Agree(errors::OwnerAway({0}, "as always")) : agreed;
    });
    EXPECT_TRUE(errors::IsOwnerAway(done)) << done;
    EXPECT_EQ(attempts, 8);
  });
}

TEST(CallAttemptsTest, TimeThatAnAttemptHasTaken_IsNotCounted) {
  OnEveryRank([](RankExchange::Options options) {
    int attempts = 0;
    options.timeout = absl::Milliseconds(500);
    const absl::Status done = CallInAttempts(options, [&](RankExchange& exchange) {
      exchange.AddPatience(absl::Seconds(20));
      absl::Status agreed = exchange.Agree(absl::OkStatus());
      if (!agreed.ok()) return agreed;
      if (++attempts > 1) return agreed;
      absl::SleepFor(absl::Milliseconds(600));  // longer than it waits for anybody
      return exchange.Agree(errors::OwnerAway({0}, "after a long time"));
    });
    EXPECT_EQ(done, absl::OkStatus());
    EXPECT_EQ(attempts, 2);
  });
}

TEST(CallAttemptsTest, RankThatBeginsAgainWhileAnotherIsAtWork_WaitsForIt) {
  OnEveryRank([](RankExchange::Options options) {
    int attempts = 0;
    options.timeout = absl::Milliseconds(500);
    const absl::Status done = CallInAttempts(options, [&](RankExchange& exchange) {
      ++attempts;
      exchange.AddPatience(absl::Seconds(20));
      absl::Status agreed = exchange.Agree(absl::OkStatus());
      const int last = options.rank == 1 ? 3 : 2;  // the attempt that all make together
      if (!agreed.ok() || attempts == last) return agreed;
      if (options.rank == 1) return errors::OwnerAway({1}, "at once");
      absl::SleepFor(absl::Milliseconds(600));  // longer than anybody is waited for
      return exchange.Agree(absl::OkStatus());
    });
    EXPECT_EQ(done, absl::OkStatus());
  });
}

// A rank that steps learns that the state is torn, and with it the others, which make a call. Only
// where they load a checkpoint will it make the same call next.
TEST(CallAttemptsTest, TornStepOfARankThatSteps_OnlyACallThatReplacesItBeginsAgain) {
  OnEveryRank([](RankExchange::Options options) {
    for (const bool replaces : {false, true}) {
      int attempts = 0;
      options.replaces_torn_state = replaces;
      const absl::Status done = CallInAttempts(options, [&](RankExchange& exchange) {
        if (++attempts > 1) return absl::OkStatus();
        exchange.Gather(0).status().IgnoreError();  // the first exchange, which the step has met
        return errors::TornStep(3, "rank 1: its optimizer state is that of no step");
      });
      EXPECT_EQ(attempts, replaces ? 2 : 1);
      EXPECT_EQ(errors::IsTornStep(done), !replaces) << done;
    }
  });
}

TEST(CallAttemptsTest, OtherErrors_EndTheCallAtOnce) {
  OnEveryRank([](const RankExchange::Options& options) {
    for (const absl::Status& error :
         {absl::DataLossError("damaged"), errors::PeerLost(2, "killed"),
          errors::RanksDisagree({1}, "as they do"), absl::UnavailableError("a file system")}) {
      int attempts = 0;
      EXPECT_EQ(CallInAttempts(options,
                               [&](RankExchange&) {
                                 ++attempts;
                                 return error;
                               }),
                error);
      EXPECT_EQ(attempts, 1);
    }
  });
}

}  // namespace
}  // namespace optshard
