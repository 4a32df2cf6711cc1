#include "tests/server/shard/engine/late_executor.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "server/update/cpu/cpu_executor.h"

namespace optshard::testing {
namespace {

std::vector<LateUpdates::Written> WrittenBy(absl::Span<const UpdateTask> tasks) {
  std::vector<LateUpdates::Written> all;
  for (const UpdateTask& task : tasks) {
    const Buffer parameter = task.span.parameter;
    const char* const begin = static_cast<const char*>(parameter.data());
    all.push_back({begin, begin + task.span.elements * SizeOf(parameter.dtype())});
  }
  return all;
}

class LateTicket final : public Ticket {
 public:
  using Run = std::function<absl::Status()>;

  LateTicket(LateUpdates* updates, bool faulty, std::vector<LateUpdates::Written> written, Run run)
      : updates_(updates), faulty_(faulty), written_(std::move(written)), run_(std::move(run)) {
    updates_->pending.insert(updates_->pending.end(), written_.begin(), written_.end());
  }

  absl::Status Wait(absl::Time deadline) override {
    updates_->before_updates();
    if (faulty_ && updates_->fault == LateUpdates::Fault::kInWait) return updates_->error;
    if (faulty_ && updates_->fault == LateUpdates::Fault::kAtDeadline) {
      absl::Notification never;
      never.WaitForNotificationWithTimeout(deadline - Clock::Monotonic().Now());
      return absl::DeadlineExceededError("the device does not answer");
    }
    absl::Status status;
    if (updates_->run_by == LateUpdates::RunBy::kWaiter) {
      status = run_();
    } else {
      std::thread([&] { status = run_(); }).join();
    }
    for (const LateUpdates::Written& written : written_) {
      auto& pending = updates_->pending;
      pending.erase(std::find_if(pending.begin(), pending.end(),
                                 [&](const auto& other) { return other.begin == written.begin; }));
      updates_->done.push_back(written);
    }
    return status;
  }

  absl::Status OrderOn(const ExecutionContext&) override {
    return absl::FailedPreconditionError("memory of the host: wait for the ticket instead");
  }

 private:
  LateUpdates* const updates_;
  const bool faulty_;
  const std::vector<LateUpdates::Written> written_;
  const Run run_;
};

class LateExecutor final : public Executor {
 public:
  LateExecutor(LateUpdates* updates, std::unique_ptr<Executor> host)
      : updates_(updates), host_(std::move(host)) {}

  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override {
    const bool faulty = updates_->started++ == updates_->faulty_ticket;
    if (faulty && updates_->fault == LateUpdates::Fault::kInStart) return updates_->error;
    return std::make_unique<LateTicket>(
        updates_, faulty, WrittenBy(tasks), [this, context, &rule, tasks]() -> absl::Status {
          const absl::StatusOr<std::unique_ptr<Ticket>> ticket = host_->Start(context, rule, tasks);
          if (!ticket.ok()) return ticket.status();
          return (*ticket)->Wait(absl::InfiniteFuture());
        });
  }

 private:
  LateUpdates* const updates_;
  const std::unique_ptr<Executor> host_;
};

}  // namespace

bool LateUpdates::Contain(const std::vector<Written>& all, const void* begin, int64_t bytes) {
  const char* const first = static_cast<const char*>(begin);
  return std::any_of(all.begin(), all.end(), [&](const Written& written) {
    return written.begin <= first && first + bytes <= written.end;
  });
}

ExecutorFactory MakeLateExecutor(LateUpdates* updates) {
  return [updates](const HostResources& host) -> absl::StatusOr<std::unique_ptr<Executor>> {
    absl::StatusOr<std::unique_ptr<Executor>> made = CpuExecutor::Create(host);
    if (!made.ok()) return made.status();
    return std::make_unique<LateExecutor>(updates, *std::move(made));
  };
}

}  // namespace optshard::testing
