// How servers and their keeper end, and what the other does then.
#include <sched.h>

#include "common/link/process_handle.h"
#include "common/link/process_stat.h"
#include "gmock/gmock.h"
#include "server/node/keeper.h"
#include "tests/server/node/keeper_rig.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

bool WaitUntilStopped(pid_t pid) {
  const absl::Time deadline = Soon();
  const auto stopped = [pid] { return StatOfProcess(pid).value_or(ProcessStat()).stopped(); };
  while (!stopped() && Clock::Monotonic().Now() < deadline) sched_yield();
  return stopped();
}

TEST(KeeperEnd, ServerExitsInOrder_KeeperDoesToo) {
  const SharedNotes notes;
  KeeperProcess keeper([&](KeeperLink& link) {
    ++notes->lives;
    EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
  EXPECT_EQ(notes->lives, 1);
}

TEST(KeeperEnd, ServerGivesUp_IsStartedAgainOnlyWhereSomethingIsKept) {
  const SharedNotes notes;
  KeeperProcess keeper([&](KeeperLink& link) {
    if (++notes->lives == 1) {
      EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    } else {
      EXPECT_TRUE(link.Forget("rank 0").ok());
    }
    return 3;
  });
  EXPECT_EQ(keeper.Wait(), 3);
  EXPECT_EQ(notes->lives, 2);
}

TEST(KeeperEnd, ServerDiesBeforeAnythingIsKept_KeeperEndsToo) {
  const SharedNotes notes;
  KeeperProcess keeper([&](KeeperLink&) {
    ++notes->lives;
    return raise(SIGKILL);
  });
  EXPECT_EQ(keeper.Wait(), 128 + SIGKILL);
  EXPECT_EQ(notes->lives, 1);
}

TEST(KeeperEnd, ServerDiesOnceAllIsForgotten_KeeperEndsToo) {
  const SharedNotes notes;
  KeeperProcess keeper([&](KeeperLink& link) {
    ++notes->lives;
    EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    if (link.life() == 2) {
      EXPECT_TRUE(link.Forget("rank 0").ok());
    }
    return raise(SIGABRT);
  });
  EXPECT_EQ(keeper.Wait(), 128 + SIGABRT);
  EXPECT_EQ(notes->lives, 2);
}

TEST(KeeperEnd, ServerThrows_DiesLikeAnyOther) {
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 2) return 0;
    EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    throw 1;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(KeeperEnd, IgnoredChildSignal_ServerIsReapedAllTheSame) {
  KeeperProcess keeper(
      [](KeeperLink& link) {
        if (link.life() == 2) return 0;
        EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
        return raise(SIGKILL);
      },
      Quick(), [] { signal(SIGCHLD, SIG_IGN); });
  EXPECT_EQ(keeper.Wait(), 0);
}

// As of process 1, which is given all of them.
TEST(KeeperEnd, OrphanEnds_IsReapedAndNotTakenForTheServer) {
  const SharedNotes notes;
  const Whisper go;
  KeeperProcess keeper(
      [&](KeeperLink& link) {
        if (link.life() == 1) {
          EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
          const pid_t orphan = fork();
          if (orphan == 0) {
            go.Hear();
            _exit(7);
          }
          notes->orphan = orphan;
          raise(SIGKILL);
        }
        go.Say('g');
        const absl::Time deadline = Soon();
        while (kill(notes->orphan, 0) == 0 && Clock::Monotonic().Now() < deadline) sched_yield();
        EXPECT_NE(kill(notes->orphan, 0), 0);
        return 0;
      },
      Quick(), [] { prctl(PR_SET_CHILD_SUBREAPER, 1); });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(KeeperEnd, AskedToEnd_ServerEndsInOrderAndNoneFollows) {
  for (const int asked_by : {SIGTERM, SIGINT}) {
    const SharedNotes notes;
    const Whisper ready;
    KeeperProcess keeper(
        [&](KeeperLink& link) {
          ++notes->lives;
          EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
          ready.Say('r');
          return WaitForSignal(SIGTERM) == SIGTERM ? 5 : 6;
        },
        Quick(), [] { Block(SIGTERM); });
    ASSERT_EQ(ready.Hear(), 'r');
    keeper.Signal(asked_by);
    EXPECT_EQ(keeper.Wait(), 5);
    EXPECT_EQ(notes->lives, 1);
  }
}

TEST(KeeperEnd, AskedToEndAndServerDiesOfIt_NoneFollows) {
  const SharedNotes notes;
  const Whisper ready;
  KeeperProcess keeper([&](KeeperLink& link) {
    ++notes->lives;
    EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    ready.Say('r');
    return WaitForSignal(SIGUSR1);
  });
  ASSERT_EQ(ready.Hear(), 'r');
  keeper.Signal(SIGTERM);
  EXPECT_EQ(keeper.Wait(), 128 + SIGTERM);
  EXPECT_EQ(notes->lives, 1);
}

TEST(KeeperEnd, AskedToEndBetweenTwoServers_EndsAsTheLastOneDid) {
  KeeperOptions options = Quick();
  options.first_pause = absl::Hours(1);
  options.longest_pause = absl::Hours(1);
  const SharedNotes notes;
  const Whisper ready;
  const Whisper go;
  KeeperProcess keeper(
      [&](KeeperLink& link) {
        notes->lives = link.life();
        EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
        if (link.life() == 1) raise(SIGKILL);
        notes->server = getpid();
        ready.Say('r');
        EXPECT_EQ(go.Hear(), 'g');
        return raise(SIGKILL);
      },
      options, [] { Block(SIGTERM); });
  ASSERT_EQ(ready.Hear(), 'r');
  const absl::StatusOr<ProcessHandle> server = ProcessHandle::Open(notes->server);
  ASSERT_TRUE(server.ok()) << server.status();
  go.Say('g');
  ASSERT_TRUE(server->WaitUntilGone(Soon()));
  keeper.Signal(SIGTERM);
  EXPECT_EQ(keeper.Wait(), 128 + SIGKILL);
  EXPECT_EQ(notes->lives, 2);
}

TEST(KeeperEnd, ServerDiesAgainAndAgain_KeeperPausesButNeverGivesUp) {
  KeeperOptions options = Quick();
  options.first_pause = absl::Milliseconds(5);
  options.longest_pause = absl::Milliseconds(10);
  const SharedNotes notes;
  const absl::Time start = Clock::Monotonic().Now();
  KeeperProcess keeper(
      [&](KeeperLink& link) {
        EXPECT_EQ(link.life(), ++notes->lives);
        if (link.life() == 1) {
          EXPECT_TRUE(KeepValue(link, "rank 0", 7).ok());
        }
        if (link.life() < 5) raise(link.life() % 2 == 0 ? SIGKILL : SIGSEGV);
        EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("rank 0", 7)));
        return 0;
      },
      options);
  EXPECT_EQ(keeper.Wait(), 0);
  EXPECT_EQ(notes->lives, 5);
  // 0, 5, 10 and 10.
  EXPECT_GE(Clock::Monotonic().Now() - start, absl::Milliseconds(25));
}

TEST(KeeperEnd, ServerStopped_IsNotDead) {
  const SharedNotes notes;
  const Whisper ready;
  KeeperProcess keeper([&](KeeperLink& link) {
    ++notes->lives;
    EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    notes->server = getpid();
    ready.Say('r');
    raise(SIGSTOP);
    return KeepValue(link, "rank 0", 2).ok() ? 0 : 1;
  });
  ASSERT_EQ(ready.Hear(), 'r');
  ASSERT_TRUE(WaitUntilStopped(notes->server));
  kill(notes->server, SIGCONT);
  EXPECT_EQ(keeper.Wait(), 0);
  EXPECT_EQ(notes->lives, 1);
}

TEST(KeeperEnd, KeeperKilled_ServerSeesItAndGoesOn) {
  const Whisper says;
  KeeperProcess keeper([&](KeeperLink& link) {
    prctl(PR_SET_PDEATHSIG, 0);
    EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
    EXPECT_FALSE(link.KeeperGone());
    says.Say('r');
    EXPECT_TRUE(PollUntil(link.fd(), 0, Soon()));
    EXPECT_TRUE(link.KeeperGone());
    const absl::Status kept = KeepValue(link, "rank 0", 2);
    EXPECT_TRUE(absl::IsUnavailable(kept)) << kept;
    EXPECT_THAT(std::string(kept.message()), HasSubstr("keeper of this shard server has ended"));
    EXPECT_TRUE(absl::IsUnavailable(link.Forget("rank 0")));
    says.Say(::testing::Test::HasFailure() ? 'f' : 'k');
    return 0;
  });
  ASSERT_EQ(says.Hear(), 'r');
  keeper.Signal(SIGKILL);
  EXPECT_EQ(keeper.Wait(), -SIGKILL);
  EXPECT_EQ(says.Hear(), 'k');
}

TEST(KeeperEnd, KeeperStopped_ServerWaitsItsTimeAndTakesNoAnswerForAnother) {
  KeeperOptions options = Quick();
  options.answer_timeout = absl::Milliseconds(20);
  const Whisper says;
  KeeperProcess keeper(
      [&](KeeperLink& link) {
        if (link.life() == 1) {
          kill(getppid(), SIGSTOP);
          EXPECT_TRUE(WaitUntilStopped(getppid()));
          EXPECT_TRUE(absl::IsDeadlineExceeded(KeepValue(link, "rank 0", 1)));
          EXPECT_FALSE(link.KeeperGone());
          kill(getppid(), SIGCONT);
          // The keeper may be slow to wake up: each time is an answer that comes late.
          absl::Status status;
          const absl::Time deadline = Soon();
          do {
            status = KeepValue(link, "rank 0", 2);
          } while (absl::IsDeadlineExceeded(status) && Clock::Monotonic().Now() < deadline);
          EXPECT_TRUE(status.ok()) << status;
          raise(SIGKILL);
        }
        EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("rank 0", 2)));
        return 0;
      },
      options);
  EXPECT_EQ(keeper.Wait(), 0);
}

}  // namespace
}  // namespace optshard
