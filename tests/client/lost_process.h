// A shard server, or a trainer, that is lost in the middle of a call of all ranks.
#ifndef OPTSHARD_TESTS_CLIENT_LOST_PROCESS_H_
#define OPTSHARD_TESTS_CLIENT_LOST_PROCESS_H_

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/owner/client_seams.h"
#include "client/owner/owner_link.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "tests/client/attached_options.h"
#include "tests/client/state_lines.h"
#include "tests/client/tensors.h"
#include "tests/server/node/kept_server.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {

// Of two ranks, whose gradients depend on the step only.
class LossTrainer {
 public:
  static constexpr int kRanks = 2;

  explicit LossTrainer(ShardedOptimizerOptions options) {
    options.policy = PartitionPolicy::kBalanced;
    options.parameter_names = {"a", "b"};
    optimizer_ = std::make_unique<ShardedOptimizer>(parameters_, RuleOptions("adam"), options);
  }
  void StepTo(int last) {
    for (int step = static_cast<int>(optimizer_->finished_step()) + 1; step <= last; ++step) {
      for (const at::Tensor& each : parameters_) {
        each.mutable_grad() = at::full(each.sizes(), 0.125 * (step % 5 + 1));
      }
      optimizer_->step();
    }
  }
  // Everything that a step depends on.
  std::vector<std::string> State() { return StateLines(*optimizer_, parameters_); }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  const std::vector<at::Tensor> parameters_ = {Parameter({5000}, 1), Parameter({3}, 1)};
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

enum class Victim { kServer, kTrainer };

struct LossPlan {
  Victim victim = Victim::kServer;
  // Rank 1's link to its owner, which calls `lose` where it is to be lost. Only the first call does
  // something.
  std::function<std::unique_ptr<OwnerLink>(std::unique_ptr<OwnerLink>, std::function<void()> lose)>
      watch;
  std::function<void(LossTrainer&)> call;  // of all ranks, after step 1; then they step to kLast
  std::function<void(LossTrainer&)> check = [](LossTrainer&) {};  // what they have then
  // Not null: nobody makes the call again, nor waits in it, and this comes after it on all ranks,
  // unless all have made it: a server that is lost between two requests is not missed.
  std::function<void(LossTrainer&)> unchanged;
  static constexpr int kLast = 4;
};

struct LossOutcome {
  bool lost = false;   // `lose` was called
  int calls = 0;       // that all ranks made until none failed
  std::string failed;  // what the first ones have said
};

// What the ranks' threads tell each other.
class Together {
 public:
  // What all say, or nothing where all are OK; by all ranks.
  std::string Failures(Rank rank, const absl::Status& own) {
    statuses_[rank] = own;
    Meet();
    std::string text;
    if (!statuses_[0].ok() || !statuses_[1].ok()) {
      text = absl::StrCat(statuses_[0].ToString(), "; ", statuses_[1].ToString());
    }
    Meet();
    return text;
  }
  // Returns once all ranks are there.
  void Meet() {
    absl::MutexLock lock(&mutex_);
    const int round = came_++ / LossTrainer::kRanks + 1;
    const auto complete = [&] { return came_ >= round * LossTrainer::kRanks; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&complete), absl::Minutes(1)));
  }

 private:
  absl::Mutex mutex_;
  int came_ = 0;
  absl::Status statuses_[LossTrainer::kRanks];
};

// What `work` ends with, once all ranks are there again.
inline absl::Status OnceAllAreThere(const std::function<void()>& work) {
  absl::Status status;
  for (int look = 0; look < 4000; ++look) {
    status = ErrorOf(work);
    // Others may not have been told yet of the end of their call.
    const bool may_come = errors::IsOwnerAway(status) || errors::IsTrainerGone(status) ||
                          errors::IsRanksDisagree(status) || absl::IsAborted(status);
    if (!may_come) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return status;
}

// The successor of a trainer makes the call, too, and so do all ranks once more where one has
// failed, at most four times.
inline LossOutcome LoseInACall(const LossPlan& plan) {
  struct Killed {};  // no std::exception: nobody takes it for an error
  KeptServer server([](int, auto*) {}, LossTrainer::kRanks);
  Together together;
  LossOutcome outcome;
  const auto work = [&](Rank rank) {
    bool lost = false;
    ClientSeams seams;
    seams.link = [&](std::unique_ptr<OwnerLink> owner) -> std::unique_ptr<OwnerLink> {
      if (rank != 1) return owner;
      return plan.watch(std::move(owner), [&] {
        if (std::exchange(lost, true)) return;
        if (plan.victim == Victim::kTrainer) throw Killed();
        server.Kill();
        server.Return();
      });
    };
    const ScopedClientSeams scoped(seams);
    const auto begin = [&] {
      ShardedOptimizerOptions options = AttachedTo(server.address(), rank, LossTrainer::kRanks);
      options.wait_for_trainers = plan.unchanged == nullptr;
      return std::make_unique<LossTrainer>(options);
    };
    auto trainer = begin();
    trainer->StepTo(1);
    together.Meet();  // who is answered first may lose the server at once
    if (plan.unchanged) {
      bool made = false;
      try {
        const absl::Status told = ErrorOf([&] { plan.call(*trainer); });
        made = told.ok();
        if (rank == 0 && !made) outcome.failed = told.ToString();
      } catch (const Killed&) {
        trainer.reset();
        trainer = begin();
      }
      if (rank == 1) outcome.lost = lost;
      // Where only one rank has made it, the two disagree from here on.
      const absl::Status same = OnceAllAreThere([&] {
        if (!made) plan.unchanged(*trainer);
      });
      EXPECT_TRUE(same.ok()) << same;
      const absl::Status stepped = OnceAllAreThere([&] { trainer->StepTo(LossPlan::kLast); });
      EXPECT_TRUE(stepped.ok()) << stepped;
      if (!same.ok() || !stepped.ok()) return;
      plan.check(*trainer);
      trainer->optimizer().Close();
      return;
    }
    std::string failures = "not called";
    for (int call = 1; call <= 4 && !failures.empty(); ++call) {
      absl::Status status;
      try {
        status = ErrorOf([&] { plan.call(*trainer); });
      } catch (const Killed&) {
        status = ErrorOf([&] {
          trainer.reset();
          trainer = begin();
          plan.call(*trainer);
        });
      }
      EXPECT_FALSE(errors::IsPeersTimedOut(status)) << status;
      if (status.ok()) status = ErrorOf([&] { trainer->StepTo(LossPlan::kLast); });
      failures = together.Failures(rank, status);
      if (rank == 0) {
        outcome.calls = call;
        if (!failures.empty()) absl::StrAppend(&outcome.failed, failures, "\n");
      }
    }
    EXPECT_EQ(failures, "");
    if (rank == 1) outcome.lost = lost;
    if (!failures.empty()) return;
    plan.check(*trainer);
    trainer->optimizer().Close();
  };
  const auto run = [&](Rank rank) {
    const absl::Status failed = ErrorOf([&] { work(rank); });
    EXPECT_TRUE(failed.ok()) << "rank " << rank << ": " << failed;
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  return outcome;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_LOST_PROCESS_H_
