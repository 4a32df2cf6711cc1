// Bytes that the ranks give each other between steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/byte_share.h"
#include "common/errors.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

StepEngine::Result Share(EngineRig& rig, Rank rank, ShareCall call, Rank from, std::string* bytes,
                         uint32_t position = 0) {
  const ByteShare share = {call, from, absl::MakeSpan(&(*bytes)[0], bytes->size()), position};
  return rig.rank(rank).engine->ShareBytes(share, absl::Seconds(20));
}

EngineRig::Options ThreeRanks(Placement placement = Placement::kFlatRegions) {
  EngineRig::Options options;
  options.world_size = 3;
  options.placements = {placement};
  return options;
}

class StepEngineShare : public ::testing::TestWithParam<Placement> {};

TEST_P(StepEngineShare, AnyRanksBytes_OrAllRanks_ReachAllBetweenSteps) {
  EngineRig rig(ThreeRanks(GetParam()));
  for (int step = 0; step < 2; ++step) {
    rig.OnEveryRank([&](Rank r) {
      for (Rank from = 0; from < 3; ++from) {
        std::string bytes = r == from ? "of one" : "......";
        EXPECT_EQ(Share(rig, r, ShareCall::kLoad, from, &bytes).status, absl::OkStatus());
        EXPECT_EQ(bytes, "of one");
      }
      std::string all = "......";
      all.replace(size_t{2} * r, 2, std::string("r") + static_cast<char>('0' + r));
      EXPECT_EQ(Share(rig, r, ShareCall::kConsolidate, kFromEveryRank, &all).status,
                absl::OkStatus());
      EXPECT_EQ(all, "r0r1r2");
      std::string none;
      EXPECT_EQ(Share(rig, r, ShareCall::kLoad, 0, &none).status, absl::OkStatus());
    });
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, StepEngineShare,
                         ::testing::Values(Placement::kFlatRegions, Placement::kReachable,
                                           Placement::kNodes),
                         [](const auto& test) { return NameOf(test.param); });

TEST(StepEngine_ShareThatDiffersBetweenRanks, IsRefusedByAll) {
  struct Case {
    Rank from;
    size_t bytes;
    ShareCall call;
    uint32_t position;
    absl::StatusCode code;
    const char* said;
  };
  const auto apart = absl::StatusCode::kAborted;
  for (const Case& odd :
       {Case{2, 6, ShareCall::kLoad, 7, apart,
             "all ranks load optimizer state, but rank 1 is at another"},
        Case{0, 5, ShareCall::kLoad, 7, apart,
             "rank 1 is at another point of the call than rank 0"},
        Case{0, 6, ShareCall::kLoad, 0, apart, "repeat the call on all ranks"},
        Case{0, 6, ShareCall::kLoad, 8, apart, "repeat the call on all ranks"},
        Case{0, 6, ShareCall::kConsolidate, 7, absl::StatusCode::kInvalidArgument,
             "rank 0 loads optimizer state, while rank 1 consolidates the optimizer state"}}) {
    EngineRig rig(ThreeRanks());
    rig.OnEveryRank([&](Rank r) {
      const Case own = r == 1 ? odd : Case{0, 6, ShareCall::kLoad, 7, odd.code, ""};
      std::string bytes(own.bytes, 'x');
      const StepEngine::Result result = Share(rig, r, own.call, own.from, &bytes, own.position);
      EXPECT_EQ(result.status.code(), odd.code) << result.status;
      EXPECT_EQ(errors::IsRanksDisagree(result.status), odd.code != apart);
      EXPECT_EQ(bytes, std::string(own.bytes, 'x'));
      EXPECT_THAT(std::string(result.status.message()), HasSubstr(odd.said));
      EXPECT_TRUE(result.refused);
      std::string again = "again";
      EXPECT_EQ(Share(rig, r, ShareCall::kLoad, 0, &again).status, absl::OkStatus());
    });
  }
}

TEST(StepEngine_ShareThatIsNone, IsRefusedByAll) {
  EngineRig rig(ThreeRanks());
  rig.OnEveryRank([&](Rank r) {
    for (const Rank from : {3, -2}) {
      std::string bytes = "bytes";
      EXPECT_TRUE(Share(rig, r, ShareCall::kLoad, from, &bytes).refused);
    }
    std::string many(kMaxShareBytes + 1, 'x');
    EXPECT_TRUE(Share(rig, r, ShareCall::kLoad, 0, &many).refused);
    std::string uneven(4, 'x');
    EXPECT_TRUE(Share(rig, r, ShareCall::kLoad, kFromEveryRank, &uneven).refused);
  });
}

TEST(StepEngine_ShareWithARankLost, TearsNothing) {
  for (const int64_t operation : {0, 1}) {  // the votes, the bytes
    EngineRig rig(ThreeRanks());
    rig.hub().KillAt(1, operation);
    rig.OnEveryRank([&](Rank r) {
      std::string bytes = "bytes";
      const StepEngine::Result result = Share(rig, r, ShareCall::kLoad, 1, &bytes);
      if (r == 1) return;
      EXPECT_TRUE(errors::IsPeerLost(result.status)) << result.status;
      EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
    });
  }
}

}  // namespace
}  // namespace optshard::testing
