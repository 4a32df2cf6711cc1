// Ranks as processes: what becomes of the others when one is killed or stopped in the middle of a
// message. The test's own process stays without threads, because it forks.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmarks/file_rendezvous.h"
#include "common/clock.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/errors.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr int kWorldSize = 3;
constexpr Rank kVictim = 1;
// Through Gloo, and through the connections for short messages.
constexpr size_t kLongBytes = 4 << 20;
constexpr size_t kShortBytes = 4 << 10;

// What a rank's process tells the test, in one write to a pipe.
struct Report {
  enum Kind : int32_t { kProgress, kLost, kTimedOut, kOther };
  Kind kind = kProgress;
  Rank rank = -1;
  Rank named = -1;
  int64_t steps = 0;
  int64_t reported_ns = 0;  // on the monotonic clock
};

int64_t NowNs() { return absl::ToUnixNanos(Clock::Monotonic().Now()); }

absl::Status Steps(DataPlane& plane, absl::Duration patience, size_t bucket_bytes,
                   const std::function<void(int64_t)>& after_step) {
  std::vector<std::vector<char>> parameters(kWorldSize, std::vector<char>(bucket_bytes, 1));
  for (StepNumber step = 1;; ++step) {
    const absl::Time deadline = Clock::Monotonic().Now() + patience;
    std::vector<std::unique_ptr<Ticket>> tickets;
    for (int bucket = 0; bucket < 4 * kWorldSize; ++bucket) {
      const Rank owner = bucket % kWorldSize;
      // Each bucket's memory is used four times at once, always with the same bytes.
      auto ticket = plane.Publish({1, step, bucket, StepPhase::kPublish}, {}, owner, {0, 1, 2},
                                  parameters[owner].data(), bucket_bytes);
      if (!ticket.ok()) return ticket.status();
      tickets.push_back(*std::move(ticket));
    }
    for (auto& ticket : tickets) {
      if (absl::Status status = ticket->Wait(deadline); !status.ok()) return status;
    }
    after_step(step);
  }
}

[[noreturn]] void RunRank(Rank rank, const std::string& folder, int pipe, absl::Duration patience,
                          size_t bucket_bytes) {
  FileRendezvous rendezvous(folder);
  GlooPlaneOptions options;
  options.rank = rank;
  options.world_size = kWorldSize;
  options.rendezvous = &rendezvous;
  options.deadline = Clock::Monotonic().Now() + absl::Seconds(30);
  Report report;
  report.rank = rank;
  const auto send = [&] {
    report.reported_ns = NowNs();
    if (write(pipe, &report, sizeof(report)) != sizeof(report)) _exit(2);
  };
  auto plane = CreateGlooPlane(options);
  absl::Status status = plane.status();
  if (plane.ok()) {
    status = Steps(**plane, patience, bucket_bytes, [&](int64_t steps) {
      report.steps = steps;
      send();
    });
  }
  report.kind = errors::IsPeerLost(status)        ? Report::kLost
                : errors::IsPeersTimedOut(status) ? Report::kTimedOut
                                                  : Report::kOther;
  const std::vector<Rank> named = errors::RanksOf(status);
  if (named.size() == 1) report.named = named[0];
  send();
  // SIGPIPE would have killed this process by now.
  plane = absl::CancelledError();
  _exit(0);
}

class GlooProcesses : public ::testing::Test {
 protected:
  void Start(absl::Duration patience, size_t bucket_bytes = kLongBytes) {
    folder_ = std::filesystem::path(::testing::TempDir()) / "optshard_gloo_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_EQ(pipe(pipe_), 0);
    for (int rank = 0; rank < kWorldSize; ++rank) {
      pids_[rank] = fork();
      ASSERT_GE(pids_[rank], 0);
      if (pids_[rank] == 0) RunRank(rank, folder_, pipe_[1], patience, bucket_bytes);
    }
    close(pipe_[1]);
  }

  // The processes never outlive the test.
  void TearDown() override {
    for (pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    close(pipe_[0]);
    std::filesystem::remove_all(folder_);
  }

  Report Next() {
    Report report;
    report.kind = Report::kOther;
    EXPECT_EQ(read(pipe_[0], &report, sizeof(report)), static_cast<ssize_t>(sizeof(report)));
    return report;
  }

  void AwaitSteps(int64_t steps) {
    for (int ranks = 0; ranks < kWorldSize;) {
      const Report report = Next();
      ASSERT_EQ(report.kind, Report::kProgress);
      if (report.steps == steps) ++ranks;
    }
  }

  // Signals the victim; returns what each of the others ends with, and when it did.
  std::vector<Report> SignalVictim(int signal) {
    signalled_ns_ = NowNs();
    EXPECT_EQ(kill(pids_[kVictim], signal), 0);
    std::vector<Report> ends;
    while (ends.size() < kWorldSize - 1 && !HasFailure()) {
      const Report report = Next();
      if (report.kind != Report::kProgress) ends.push_back(report);
    }
    return ends;
  }

  void ExpectExit(Rank rank) {
    int status = -1;
    EXPECT_EQ(waitpid(pids_[rank], &status, 0), pids_[rank]);
    EXPECT_EQ(status, 0) << "rank " << rank;
    pids_[rank] = 0;
  }

  std::string folder_;
  int pipe_[2] = {-1, -1};
  pid_t pids_[kWorldSize] = {};
  int64_t signalled_ns_ = 0;
};

class GlooProcessesOfEachKind : public GlooProcesses,
                                public ::testing::WithParamInterface<size_t> {};

INSTANTIATE_TEST_SUITE_P(Messages, GlooProcessesOfEachKind,
                         ::testing::Values(kLongBytes, kShortBytes), [](const auto& bytes) {
                           return bytes.param == kLongBytes ? "Long" : "Short";
                         });

TEST_P(GlooProcessesOfEachKind, RankKilled_OthersNameItWithinTwoSeconds) {
  Start(absl::Seconds(60), GetParam());
  AwaitSteps(2);
  for (const Report& end : SignalVictim(SIGKILL)) {
    EXPECT_EQ(end.kind, Report::kLost) << "rank " << end.rank;
    EXPECT_EQ(end.named, kVictim) << "rank " << end.rank;
    EXPECT_LT(end.reported_ns - signalled_ns_, 2'000'000'000) << "rank " << end.rank;
  }
  ExpectExit(0);
  ExpectExit(2);
}

TEST_F(GlooProcesses, RankStopped_OthersTimeOutNamingIt) {
  Start(absl::Seconds(1));
  AwaitSteps(2);
  for (const Report& end : SignalVictim(SIGSTOP)) {
    EXPECT_EQ(end.kind, Report::kTimedOut) << "rank " << end.rank;
    EXPECT_LT(end.reported_ns - signalled_ns_, 3'000'000'000) << "rank " << end.rank;
  }
  ExpectExit(0);
  ExpectExit(2);
}

}  // namespace
}  // namespace optshard
