#include "tests/server/shard/engine/fake_device_executor.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/device_wait.h"
#include "common/fatal.h"
#include "server/shard/state/mapped_memory.h"
#include "server/update/cpu/cpu_executor.h"
#include "server/update/cpu/worker_threads.h"

namespace optshard::testing {
namespace {

class DeviceTicket final : public Ticket {
 public:
  DeviceTicket(std::shared_ptr<DeviceApi> device, std::unique_ptr<DeviceEvent> done)
      : device_(std::move(device)), done_(std::move(done)) {}

  absl::Status Wait(absl::Time deadline) override {
    return AwaitReached(*device_, *done_, deadline, Clock::Monotonic());
  }
  absl::Status OrderOn(const ExecutionContext& context) override {
    return device_->OrderAfter(context.stream, *done_);
  }

 private:
  const std::shared_ptr<DeviceApi> device_;
  const std::unique_ptr<DeviceEvent> done_;
};

// What a device has of an update.
struct Launch {
  Launch(const UpdateRule& of_rule, absl::Span<const UpdateTask> given)
      : rule(&of_rule), tasks(given.begin(), given.end()) {
    for (UpdateTask& task : tasks) {
      coefficients.push_back(*task.coefficients);
      task.coefficients = &coefficients.back();
      workspace_bytes = std::max(
          workspace_bytes, rule->WorkspaceBytes(task.span.shape, task.span.parameter.dtype()));
    }
  }

  void Run() const {
    WorkerThreads threads(1);
    const absl::StatusOr<MappedMemory> workspace =
        MappedMemory::Allocate(workspace_bytes, "a workspace");
    if (!workspace.ok()) Fatal("%s", workspace.status().ToString());
    const auto host =
        CpuExecutor::Create({&threads, DriverKind::kSimd, workspace->data(), workspace_bytes});
    const auto ticket = (*host)->Start(ExecutionContext(), *rule, tasks);
    if (!ticket.ok()) Fatal("%s", ticket.status().ToString());
    const absl::Status done = (*ticket)->Wait(absl::InfiniteFuture());
    if (!done.ok()) Fatal("%s", done.ToString());
  }

  const UpdateRule* rule;
  std::vector<UpdateTask> tasks;
  std::deque<Coefficients> coefficients;
  int64_t workspace_bytes = 0;
};

std::string& RuleWithoutKernels() {
  static auto& rule = *new std::string;
  return rule;
}

class FakeDeviceExecutor final : public Executor {
 public:
  FakeDeviceExecutor(const FakeDevices& devices, std::shared_ptr<DeviceApi> device,
                     MayUpdate may_update)
      : devices_(devices), device_(std::move(device)), may_update_(std::move(may_update)) {}

  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override {
    if (context.device != device_->name()) return absl::InvalidArgumentError(context.device);
    devices_.Enqueue(context.stream, [launch = std::make_shared<const Launch>(rule, tasks),
                                      start = starts_++, may_update = may_update_] {
      if (may_update != nullptr && !may_update(start)) return false;
      launch->Run();
      return true;
    });
    absl::StatusOr<std::unique_ptr<DeviceEvent>> done = device_->NewEvent();
    if (!done.ok()) return done.status();
    const absl::Status recorded = device_->Record(**done, context.stream);
    if (!recorded.ok()) return recorded;
    return std::unique_ptr<Ticket>(std::make_unique<DeviceTicket>(device_, *std::move(done)));
  }

  absl::Status CheckRuns(const UpdateRule& rule) const override {
    if (rule.spec().name != without_kernels_) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrFormat("rule \"%s\" has no kernels", rule.spec().name));
  }

 private:
  FakeDevices devices_;
  const std::shared_ptr<DeviceApi> device_;
  const MayUpdate may_update_;
  const std::string without_kernels_ = RuleWithoutKernels();
  int starts_ = 0;
};

}  // namespace

WithoutKernels::WithoutKernels(const std::string& rule) { RuleWithoutKernels() = rule; }

WithoutKernels::~WithoutKernels() { RuleWithoutKernels().clear(); }

ExecutorFactory MakeFakeDeviceExecutor(const FakeDevices& devices,
                                       const std::shared_ptr<DeviceApi>& device,
                                       const MayUpdate& may_update) {
  return [=](const HostResources&) -> absl::StatusOr<std::unique_ptr<Executor>> {
    return std::make_unique<FakeDeviceExecutor>(devices, device, may_update);
  };
}

}  // namespace optshard::testing
