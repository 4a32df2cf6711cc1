#include "tests/testing/server_ledgers.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "common/link/process_stat.h"
#include "common/link/unique_fd.h"
#include "server/shard/state/shard_ledger.h"

namespace optshard::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPageBytes = 4096;  // the ledger's progress is in its first line
constexpr absl::Duration kLongestLook = absl::Microseconds(500);

// The rank whose ledger the descriptor is; -1: something else.
Rank RankOfLedger(const fs::path& descriptor) {
  std::error_code gone;
  const std::string target = fs::read_symlink(descriptor, gone).string();
  absl::string_view name = target;
  if (!absl::ConsumePrefix(&name, "/memfd:optshard:ledger:")) return -1;
  absl::ConsumeSuffix(&name, " (deleted)");
  int rank = -1;
  return absl::SimpleAtoi(name, &rank) ? rank : -1;
}

}  // namespace

absl::StatusOr<ServerLedgers> ServerLedgers::Of(pid_t server, int ranks) {
  ServerLedgers ledgers(server);
  std::error_code gone;
  for (const auto& each : fs::directory_iterator(absl::StrCat("/proc/", server, "/fd"), gone)) {
    const Rank rank = RankOfLedger(each.path());
    if (rank < 0 || ledgers.pages_.count(rank) > 0) continue;
    const UniqueFd fd(open(each.path().c_str(), O_RDONLY | O_CLOEXEC));
    void* const page = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (page == MAP_FAILED) continue;
    ledgers.pages_[rank] = page;
  }
  if (static_cast<int>(ledgers.Read().size()) != ranks) {
    return absl::NotFoundError(
        absl::StrCat("process ", server, " has not begun the ledgers of ", ranks, " ranks"));
  }
  return ledgers;
}

ServerLedgers::~ServerLedgers() {
  for (const auto& [rank, page] : pages_) munmap(page, kPageBytes);
}

std::vector<KeptState> ServerLedgers::Read() const {
  std::vector<KeptState> all;
  for (const auto& [rank, page] : pages_) {
    const absl::optional<KeptState> kept = ShardLedger::Read(page);
    if (kept.has_value()) all.push_back(*kept);
  }
  return all;
}

absl::Status ServerLedgers::StopWhen(const Moment& moment, absl::Time deadline) const {
  int looks = 0;
  while (absl::Now() < deadline && StopAllThreads(deadline)) {
    ++looks;
    if (moment(Read())) return absl::OkStatus();
    Continue();
    absl::SleepFor(kLongestLook * (std::rand() % 100) / 100);
  }
  Continue();
  return absl::DeadlineExceededError(absl::StrCat("the moment did not come in ", looks,
                                                  " looks at the ledgers of process ", server_));
}

void ServerLedgers::Continue() const { kill(server_, SIGCONT); }

bool ServerLedgers::StopAllThreads(absl::Time deadline) const {
  if (kill(server_, SIGSTOP) != 0) return false;
  while (absl::Now() < deadline) {
    bool all = true;
    std::error_code gone;
    for (const auto& each :
         fs::directory_iterator(absl::StrCat("/proc/", server_, "/task"), gone)) {
      const pid_t thread = std::atoi(each.path().filename().c_str());
      all = all && StatOfProcess(thread).value_or(ProcessStat()).stopped();
    }
    if (all) return !gone;
    sched_yield();
  }
  return false;
}

bool IsTorn(const std::vector<KeptState>& kept) {
  return absl::c_any_of(kept, [&](const KeptState& each) {
    return each.progress.outcome == StepOutcome::kTorn ||
           AppliedStep(each.progress) != AppliedStep(kept[0].progress);
  });
}

}  // namespace optshard::testing
