// What a keeper keeps, and for whom.
#include "server/node/keeper.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/link/kernel_file.h"
#include "gmock/gmock.h"
#include "server/node/keeper_line.h"
#include "tests/server/node/keeper_rig.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

uint64_t InodeOf(const UniqueFd& fd) {
  struct stat file = {};
  EXPECT_EQ(fstat(fd.get(), &file), 0);
  return file.st_ino;
}

int OpenDescriptors(pid_t pid) {
  DIR* const folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return pid == getpid() ? count - 1 : count;  // not the folder's
}

std::string ReadProc(pid_t pid, const std::string& file) {
  return ReadKernelFile(absl::StrCat("/proc/", pid, "/", file)).value_or("");
}

TEST(Keeper, FirstServer_InheritsNothing) {
  KeeperProcess keeper([](KeeperLink& link) {
    EXPECT_EQ(link.life(), 1);
    EXPECT_THAT(link.TakeInherited(), IsEmpty());
    EXPECT_FALSE(link.KeeperGone());
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, ServerKilled_NextOneGetsTheSameMemory) {
  const SharedNotes notes;
  KeeperProcess keeper([&](KeeperLink& link) {
    if (link.life() == 1) {
      const UniqueFd memory = MemfdWith(1);
      notes->inode = InodeOf(memory);
      EXPECT_TRUE(link.Keep("rank 0", {memory.get()}).ok());
      const uint64_t later = 4711;  // the memory is shared, not copied
      EXPECT_EQ(pwrite(memory.get(), &later, sizeof(later), 0), ssize_t{sizeof(later)});
      raise(SIGKILL);
    }
    EXPECT_EQ(link.life(), 2);
    const std::vector<KeptUnit> units = link.TakeInherited();
    EXPECT_THAT(ValuesOf(units), ElementsAre(Pair("rank 0", 4711)));
    EXPECT_EQ(InodeOf(units.at(0).descriptors.at(0)), notes->inode);
    EXPECT_THAT(link.TakeInherited(), IsEmpty());
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, UnitsReplacedAndForgotten_NextServerGetsTheRestByName) {
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 1) {
      EXPECT_TRUE(KeepValue(link, "c", 3).ok());
      EXPECT_TRUE(KeepValue(link, "b", 2).ok());
      EXPECT_TRUE(KeepValue(link, "a", 1).ok());
      EXPECT_TRUE(KeepValue(link, "c", 30).ok());
      EXPECT_TRUE(link.Forget("b").ok());
      EXPECT_TRUE(link.Forget("never kept").ok());
      raise(SIGKILL);
    }
    EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("a", 1), Pair("c", 30)));
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, UnitsNotTaken_StayKeptForTheOneAfter) {
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 1) {
      EXPECT_TRUE(KeepValue(link, "rank 0", 7).ok());
    }
    if (link.life() < 4) raise(SIGKILL);
    EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("rank 0", 7)));
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, UnitOfManyDescriptors_ComesWholeInOrder) {
  static constexpr int kMost = 250;
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 1) {
      std::vector<UniqueFd> memory;
      std::vector<int> numbers;
      for (uint64_t i = 0; i < kMost + 1; ++i) {
        memory.push_back(MemfdWith(i));
        numbers.push_back(memory.back().get());
      }
      const absl::Status too_many = link.Keep("rank 0", numbers);
      EXPECT_TRUE(absl::IsInvalidArgument(too_many)) << too_many;
      numbers.pop_back();
      const absl::Status most = link.Keep("rank 0", numbers);
      EXPECT_TRUE(most.ok()) << most;
      raise(SIGKILL);
    }
    const std::vector<KeptUnit> units = link.TakeInherited();
    EXPECT_THAT(units, SizeIs(1));
    EXPECT_THAT(units.at(0).descriptors, SizeIs(kMost));
    for (uint64_t i = 0; i < kMost; ++i) EXPECT_EQ(ValueIn(units.at(0).descriptors.at(i)), i);
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, ManyThreadsKeep_AllIsKept) {
  static constexpr int kThreads = 4;
  static constexpr int kEach = 20;
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 1) {
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&link, i] {
          for (int k = 0; k < kEach; ++k) {
            EXPECT_TRUE(KeepValue(link, absl::StrCat(i, " ", k), 1).ok());
          }
        });
      }
      for (std::thread& each : threads) each.join();
      raise(SIGKILL);
    }
    EXPECT_THAT(link.TakeInherited(), SizeIs(kThreads * kEach));
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, ManyLives_NoDescriptorIsLeaked) {
  static constexpr int kLives = 20;
  const SharedNotes notes;
  KeeperProcess keeper(
      [&](KeeperLink& link) {
        const int units = link.life() == 1 ? 0 : 2;
        // Its line, and what it inherits.
        EXPECT_EQ(OpenDescriptors(getpid()), notes->descriptors + 1 + units);
        EXPECT_THAT(link.TakeInherited(), SizeIs(units));
        EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
        EXPECT_TRUE(KeepValue(link, "rank 1", 1).ok());
        // Its line, its signals, and what it keeps.
        EXPECT_EQ(OpenDescriptors(getppid()), notes->descriptors + 2 + 2);
        if (link.life() < kLives && !::testing::Test::HasFailure()) raise(SIGKILL);
        return 0;
      },
      Quick(), [&] { notes->descriptors = OpenDescriptors(getpid()); });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, Server_IsAsTheProcessWasAndKeeperMapsNothing) {
  const std::string name = ReadProc(getpid(), "comm");
  KeeperProcess keeper(
      [&](KeeperLink& link) {
        if (link.life() == 1) {
          EXPECT_TRUE(KeepValue(link, "rank 0", 1).ok());
          raise(SIGKILL);
        }
        EXPECT_EQ(ReadProc(getpid(), "comm"), name);
        EXPECT_EQ(ReadProc(getppid(), "comm"), "optshard-keeper\n");
        EXPECT_THAT(ReadProc(getppid(), "maps"), Not(HasSubstr("memfd:keeper_test")));
        sigset_t mask;
        EXPECT_EQ(sigprocmask(SIG_SETMASK, nullptr, &mask), 0);
        EXPECT_TRUE(sigismember(&mask, SIGUSR1));
        EXPECT_FALSE(sigismember(&mask, SIGTERM));
        EXPECT_FALSE(sigismember(&mask, SIGCHLD));
        return 0;
      },
      Quick(), [] { Block(SIGUSR1); });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, NamesAndCountsThatMayNotBe_AreInvalid) {
  KeeperProcess keeper([](KeeperLink& link) {
    EXPECT_TRUE(absl::IsInvalidArgument(KeepValue(link, "", 1)));
    EXPECT_TRUE(absl::IsInvalidArgument(KeepValue(link, std::string(257, 'n'), 1)));
    EXPECT_TRUE(KeepValue(link, std::string(256, 'n'), 1).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(link.Keep("rank 0", {})));
    EXPECT_TRUE(absl::IsInvalidArgument(link.Forget("")));
    EXPECT_FALSE(link.Keep("rank 0", {-1}).ok());
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, RubbishOnTheLine_IsRefusedAndKeepingGoesOn) {
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 1) {
      const UniqueFd memory = MemfdWith(1);
      const auto say = [&](const std::string& bytes, size_t descriptors) {
        const std::vector<int> sent(descriptors, memory.get());
        const absl::Status status = SendPacket(link.fd(), bytes, sent, Soon());
        EXPECT_TRUE(status.ok()) << status;
      };
      KeeperRequest request;
      request.name = "too much";
      say("", 0);
      say("rubbish", 0);
      say(std::string(4096, 'x'), 3);
      say(Encode(request), 253);
      say(Encode(request), 0);
      request.name = "";
      say(Encode(request), 1);
      EXPECT_TRUE(KeepValue(link, "rank 0", 7).ok());
      raise(SIGKILL);
    }
    EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("rank 0", 7)));
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, ServerClosesItsEnd_IsStillWatched) {
  KeeperProcess keeper([](KeeperLink& link) {
    if (link.life() == 1) {
      EXPECT_TRUE(KeepValue(link, "rank 0", 7).ok());
      shutdown(link.fd(), SHUT_RDWR);
      EXPECT_TRUE(absl::IsUnavailable(KeepValue(link, "rank 0", 8)));
      raise(SIGKILL);
    }
    EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("rank 0", 7)));
    return 0;
  });
  EXPECT_EQ(keeper.Wait(), 0);
}

// What stays of a unit that cannot be replaced is the unit as it was.
TEST(Keeper, MayOpenNoMore_IsExhaustedAndKeepsWhatItHas) {
  constexpr rlim_t kKeepersLimit = 64;
  KeeperProcess keeper(
      [](KeeperLink& link) {
        if (link.life() == 1) {
          rlimit limit;
          getrlimit(RLIMIT_NOFILE, &limit);
          limit.rlim_cur = limit.rlim_max;
          setrlimit(RLIMIT_NOFILE, &limit);
          EXPECT_TRUE(KeepValue(link, "old", 7).ok());
          const UniqueFd memory = MemfdWith(1);
          // More than there are numbers, then more than leave some to spare.
          for (const int count : {64, 48}) {
            const absl::Status status = link.Keep("old", std::vector<int>(count, memory.get()));
            EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
            EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
          }
          EXPECT_TRUE(KeepValue(link, "small", 8).ok());
          raise(SIGKILL);
        }
        EXPECT_THAT(ValuesOf(link.TakeInherited()), ElementsAre(Pair("old", 7), Pair("small", 8)));
        return 0;
      },
      Quick(),
      [] {
        rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = kKeepersLimit;
        setrlimit(RLIMIT_NOFILE, &limit);
      });
  EXPECT_EQ(keeper.Wait(), 0);
}

TEST(Keeper, AsManyUnitsAsItMayHold_TakesOneOnlyForAnother) {
  static constexpr int kMost = 4096;
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < kMost + 100) GTEST_SKIP() << "ulimit -Hn is only " << limit.rlim_max;
  limit.rlim_cur = limit.rlim_max;
  KeeperProcess keeper(
      [](KeeperLink& link) {
        const UniqueFd memory = MemfdWith(1);
        for (int i = 0; i < kMost; ++i) {
          const absl::Status status = link.Keep(absl::StrCat(i), {memory.get()});
          EXPECT_TRUE(status.ok()) << status;
          if (!status.ok()) return 1;
        }
        EXPECT_TRUE(absl::IsResourceExhausted(KeepValue(link, "one more", 2)));
        EXPECT_TRUE(KeepValue(link, "0", 3).ok());
        EXPECT_TRUE(link.Forget("1").ok());
        EXPECT_TRUE(KeepValue(link, "one more", 2).ok());
        return 0;
      },
      Quick(), [&] { setrlimit(RLIMIT_NOFILE, &limit); });
  EXPECT_EQ(keeper.Wait(), 0);
}

}  // namespace
}  // namespace optshard
