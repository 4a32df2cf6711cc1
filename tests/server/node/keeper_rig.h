// A keeper in a process of its own, and what tests share with it and its servers.
#ifndef OPTSHARD_TESTS_SERVER_NODE_KEEPER_RIG_H_
#define OPTSHARD_TESTS_SERVER_NODE_KEEPER_RIG_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"
#include "server/node/keeper.h"
#include "tests/testing/in_child.h"

namespace optshard {

inline absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(30); }

// Of servers in which an expectation failed; they have printed it.
constexpr int kFailed = 99;

// In memory that all processes of a test share.
struct Notes {
  std::atomic<int> lives{0};
  std::atomic<uint64_t> inode{0};
  std::atomic<pid_t> server{0};
  std::atomic<pid_t> orphan{0};
  std::atomic<int> descriptors{0};
};

class SharedNotes {
 public:
  SharedNotes()
      : notes_(new (mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Notes) {}
  ~SharedNotes() { munmap(notes_, sizeof(Notes)); }
  SharedNotes(const SharedNotes&) = delete;
  SharedNotes& operator=(const SharedNotes&) = delete;
  Notes* operator->() const { return notes_; }

 private:
  Notes* const notes_;
};

// Words of one letter from one process to another.
class Whisper {
 public:
  Whisper() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reads_ = UniqueFd(ends[0]);
    writes_ = UniqueFd(ends[1]);
  }
  void Say(char word) const { EXPECT_EQ(write(writes_.get(), &word, 1), 1); }
  // '?' where none comes.
  char Hear() const {
    char word = '?';
    if (PollUntil(reads_.get(), POLLIN, Soon())) {
      EXPECT_EQ(read(reads_.get(), &word, 1), 1);
    }
    return word;
  }

 private:
  UniqueFd reads_;
  UniqueFd writes_;
};

inline UniqueFd MemfdWith(uint64_t value) {
  UniqueFd fd(memfd_create("keeper_test", MFD_CLOEXEC));
  EXPECT_EQ(pwrite(fd.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return fd;
}

inline uint64_t ValueIn(const UniqueFd& fd) {
  uint64_t value = 0;
  EXPECT_EQ(pread(fd.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return value;
}

inline absl::Status KeepValue(KeeperLink& link, const std::string& name, uint64_t value) {
  return link.Keep(name, {MemfdWith(value).get()});
}

// Of each unit, the first descriptor's.
inline std::vector<std::pair<std::string, uint64_t>> ValuesOf(const std::vector<KeptUnit>& units) {
  std::vector<std::pair<std::string, uint64_t>> values;
  for (const KeptUnit& each : units)
    values.emplace_back(each.name, ValueIn(each.descriptors.at(0)));
  return values;
}

inline void Block(int signal) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
}

inline int WaitForSignal(int signal) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  const timespec most = {30, 0};
  return sigtimedwait(&signals, nullptr, &most);
}

// Pauses are nothing to speak of, unless a test sets them.
inline KeeperOptions Quick() {
  KeeperOptions options;
  options.first_pause = absl::Microseconds(1);
  options.longest_pause = absl::Microseconds(1);
  options.answer_timeout = absl::Seconds(30);
  return options;
}

// Bound to a thread. Its servers end with it, unless they ask not to.
class KeeperProcess {
 public:
  using Serve = std::function<int(KeeperLink&)>;

  // `prepare` runs in the process before it becomes the keeper.
  explicit KeeperProcess(
      const Serve& serve, const KeeperOptions& options = Quick(),
      const std::function<void()>& prepare = [] {})
      : child_([&] {
          prepare();
          KeeperOptions of_keeper = options;
          of_keeper.serve = [&](KeeperLink& link) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int code = serve(link);
            return ::testing::Test::HasFailure() ? kFailed : code;
          };
          return RunKeeper(of_keeper);
        }) {}

  pid_t pid() const { return child_.pid(); }
  // What RunKeeper returned, or minus the signal that killed the keeper.
  int Wait() { return child_.Wait(); }
  void Signal(int signal) { kill(pid(), signal); }

 private:
  testing::Child child_;
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_SERVER_NODE_KEEPER_RIG_H_
