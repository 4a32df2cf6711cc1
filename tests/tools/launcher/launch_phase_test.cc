#include "tools/launcher/launch_phase.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace optshard {
namespace {

constexpr LaunchPhase kPhases[] = {LaunchPhase::kStartCoordinator,
                                   LaunchPhase::kStartServer,
                                   LaunchPhase::kTrain,
                                   LaunchPhase::kEndTrainers,
                                   LaunchPhase::kEndServer,
                                   LaunchPhase::kEndCoordinator,
                                   LaunchPhase::kKill,
                                   LaunchPhase::kOver};
constexpr LaunchEvent kEvents[] = {LaunchEvent::kReady, LaunchEvent::kGone, LaunchEvent::kFailure,
                                   LaunchEvent::kInterrupt, LaunchEvent::kDeadline};

// In the order of kPhases and kEvents; "-" stays.
constexpr const char* kNext[][5] = {
    {"start server", "-", "end trainers", "end trainers", "end trainers"},
    {"train", "-", "end trainers", "end trainers", "end trainers"},
    {"-", "end server", "end trainers", "end trainers", "-"},
    {"-", "end server", "-", "kill", "kill"},
    {"-", "end coordinator", "-", "kill", "kill"},
    {"-", "kill", "-", "kill", "kill"},
    {"-", "over", "-", "-", "over"},
    {"-", "-", "-", "-", "-"},
};

TEST(LaunchPhaseTest, NextPhase_EveryPair_IsThatOfTheTable) {
  for (size_t i = 0; i < std::size(kPhases); ++i) {
    for (size_t j = 0; j < std::size(kEvents); ++j) {
      const std::string next = kNext[i][j];
      EXPECT_EQ(NameOf(NextPhase(kPhases[i], kEvents[j])), next == "-" ? NameOf(kPhases[i]) : next)
          << NameOf(kPhases[i]) << ", " << NameOf(kEvents[j]);
    }
  }
}

TEST(LaunchPhaseTest, Phases_ThatEnd_ComeAfterThoseThatBegin) {
  // Job compares them.
  for (const LaunchPhase phase : kPhases) {
    const bool ends =
        std::string(NameOf(phase)).rfind("start", 0) != 0 && phase != LaunchPhase::kTrain;
    EXPECT_EQ(phase >= LaunchPhase::kEndTrainers, ends) << NameOf(phase);
  }
}

TEST(LaunchPhaseTest, Interrupts_WhereverTheyCome_EndTheJob) {
  for (const LaunchPhase first : kPhases) {
    LaunchPhase phase = first;
    std::set<LaunchPhase> seen;
    while (phase != LaunchPhase::kOver) {
      ASSERT_TRUE(seen.insert(phase).second) << "comes back to " << NameOf(phase);
      phase = NextPhase(phase, LaunchEvent::kInterrupt) == phase
                  ? NextPhase(phase, LaunchEvent::kGone)
                  : NextPhase(phase, LaunchEvent::kInterrupt);
    }
  }
}

}  // namespace
}  // namespace optshard
