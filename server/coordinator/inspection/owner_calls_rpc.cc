#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {
namespace {

constexpr int kMostCalls = 32;  // at once
constexpr absl::Duration kPoll = absl::Milliseconds(50);

}  // namespace

absl::Status CheckAddress(const OwnerToAsk& owner) {
  if (!owner.address.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("rank ", owner.rank, " has told no address of its shard owner"));
}

bool CallWindow::HasRoom() const { return calls_ < kMostCalls; }

bool CallWindow::Await(bool (CallWindow::*condition)() const, const CallPatience& patience) {
  const auto holds = [this, condition] { return (this->*condition)(); };
  while (!mutex_.AwaitWithTimeout(absl::Condition(&holds), kPoll)) {
    if (patience.ended()) return false;
  }
  return true;
}

bool CallWindow::Enter(const CallPatience& patience) {
  absl::MutexLock lock(&mutex_);
  if (!Await(&CallWindow::HasRoom, patience)) return false;
  ++calls_;
  return true;
}

void CallWindow::Leave() {
  absl::MutexLock lock(&mutex_);
  --calls_;
}

bool CallWindow::WaitForAll(const CallPatience& patience) {
  absl::MutexLock lock(&mutex_);
  return Await(&CallWindow::IsEmpty, patience);
}

}  // namespace optshard
