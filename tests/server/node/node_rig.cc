#include "tests/server/node/node_rig.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/link/process_stat.h"
#include "common/membership/coordinator_client.h"
#include "gtest/gtest.h"
#include "server/node/attach_server.h"
#include "server/node/node_owners.h"
#include "tests/testing/forwarding_coordinator.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(2);
constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

LocalAddress NewNodeAddress() {
  // Process numbers repeat in other sandboxes of the machine.
  static std::atomic<int> next{0};
  static const unsigned process = std::random_device()();
  return absl::StrCat("@optshard-node-test-", process, "-", next.fetch_add(1));
}

bool Await(const std::function<bool()>& condition) {
  const absl::Time deadline = Clock::Monotonic().Now() + kPatience;
  while (!condition()) {
    if (Clock::Monotonic().Now() >= deadline) return false;
    absl::SleepFor(kRetry);
  }
  return true;
}

bool AwaitAsleep(pid_t thread) {
  return Await([thread] { return StatOfProcess(thread).value_or(ProcessStat()).state == 'S'; });
}

std::shared_ptr<Board> Board::Make() {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return std::shared_ptr<Board>(new (memory) Board,
                                [](Board* board) { munmap(board, sizeof(Board)); });
}

bool Board::Await(const std::atomic<int>& value, int at_least) {
  return testing::Await([&] { return value >= at_least; });
}

class SeverableCoordinator final : public testing::ForwardingCoordinator {
 public:
  explicit SeverableCoordinator(CoordinatorClient* client)
      : ForwardingCoordinator(client, [this](std::unique_ptr<MemberSession> session) {
          return std::make_unique<Session>(std::move(session), &severed_);
        }) {}

  void Sever() { severed_ = true; }

  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline,
                                                      Cancellation* cancellation) override {
    if (severed_) return absl::UnavailableError("cut off from the coordinator");
    return ForwardingCoordinator::Join(request, deadline, cancellation);
  }

 private:
  class Session final : public testing::ForwardingSession {
   public:
    Session(std::unique_ptr<MemberSession> session, const std::atomic<bool>* severed)
        : ForwardingSession(std::move(session)), severed_(*severed) {}

    void SetProgress(const StepProgress& progress) override {
      if (!severed_) ForwardingSession::SetProgress(progress);
    }
    absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                               const absl::Status& observed, absl::Time deadline) override {
      if (severed_) return observed;
      return ForwardingSession::ReportFailure(progress, suspect, observed, deadline);
    }
    absl::Status Leave(absl::Time deadline) override {
      return severed_ ? absl::OkStatus() : ForwardingSession::Leave(deadline);
    }

   private:
    const std::atomic<bool>& severed_;
  };

  std::atomic<bool> severed_{false};
};

absl::Status FakeKeeper::Keep(absl::string_view name, absl::Span<const int> descriptors) {
  absl::MutexLock lock(&mutex_);
  std::vector<UniqueFd>& unit = units_[std::string(name)];
  unit.clear();
  for (const int fd : descriptors) unit.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return absl::OkStatus();
}

absl::Status FakeKeeper::Forget(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  units_.erase(std::string(name));
  return absl::OkStatus();
}

std::vector<KeptUnit> FakeKeeper::Units() const {
  absl::MutexLock lock(&mutex_);
  std::vector<KeptUnit> units;
  for (const auto& [name, descriptors] : units_) {
    KeptUnit& unit = units.emplace_back();
    unit.name = name;
    for (const UniqueFd& fd : descriptors) {
      unit.descriptors.emplace_back(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    }
  }
  return units;
}

NodeRig::NodeRig(Options options, std::vector<KeptUnit> units) : options_(std::move(options)) {
  if (options_.owners.coordinator == nullptr) {
    coordinator_ = std::make_unique<LocalCoordinator>(options_.world_size);
    options_.owners.coordinator = coordinator_.get();
  }
  if (options_.owners.ranks.empty()) {
    for (Rank rank = 0; rank < options_.world_size; ++rank) options_.owners.ranks.insert(rank);
  }
  severable_ = std::make_unique<SeverableCoordinator>(options_.owners.coordinator);
  options_.owners.coordinator = severable_.get();
  owners_ = std::make_unique<NodeOwners>(options_.owners);
  const absl::Status taken_over = owners_->TakeOver(std::move(units));
  EXPECT_TRUE(taken_over.ok()) << taken_over;
  server_ = AttachServer::Start(options_.address, owners_.get()).value();
}

NodeRig::NodeRig(int world_size, const LocalAddress& address)
    : NodeRig([world_size, &address] {
        Options options;
        options.world_size = world_size;
        options.address = address;
        return options;
      }()) {}

NodeRig::~NodeRig() {
  if (server_ != nullptr) Drain(absl::Seconds(20));
}

bool NodeRig::AwaitWaiting(Rank rank) const {
  const std::string optimizer = TrainerOptions(rank).optimizer;
  return Await([&] { return owners_->WaitsForOthers(optimizer, rank); });
}

bool NodeRig::AwaitJoined(Rank rank) {
  return Await([this, rank] {
    const absl::StatusOr<JobStatus> job =
        severable_->GetStatus(Clock::Monotonic().Now() + kPatience);
    if (!job.ok() || job->groups.empty()) return false;
    for (const MemberStatus& member : job->groups[0].members) {
      if (member.rank == rank) return member.state == MemberState::kJoined;
    }
    return false;
  });
}

void NodeRig::Die() {
  severable_->Sever();
  server_.reset();
  owners_.reset();
}

bool NodeRig::Drain(absl::Duration grace) {
  server_->StopListening();
  const bool in_order = owners_->Drain(grace);
  server_->Stop(absl::UnavailableError("the shard server is shutting down"));
  return in_order;
}

void NodeRig::OnEveryRank(const std::function<void(Rank)>& work) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < options_.world_size; ++rank) {
    threads.emplace_back([&work, rank] { work(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::unique_ptr<NodeTrainer>> NodeRig::StartAll() {
  std::vector<std::unique_ptr<NodeTrainer>> trainers(options_.world_size);
  OnEveryRank([&](Rank rank) {
    absl::StatusOr<std::unique_ptr<NodeTrainer>> started = NodeTrainer::Start(TrainerOptions(rank));
    ASSERT_TRUE(started.ok()) << "rank " << rank << ": " << started.status();
    trainers[rank] = *std::move(started);
  });
  return trainers;
}

}  // namespace optshard::testing
