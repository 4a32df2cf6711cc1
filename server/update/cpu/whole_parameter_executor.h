// Updates by rules that need a parameter as a whole, on the threads of a host.
#ifndef OPTSHARD_SERVER_UPDATE_CPU_WHOLE_PARAMETER_EXECUTOR_H_
#define OPTSHARD_SERVER_UPDATE_CPU_WHOLE_PARAMETER_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/update/cpu/worker_threads.h"
#include "server/update/executor.h"

namespace optshard {

// Each parameter is one thread's, so that the number of threads changes no bit; those
// that cost most (UpdateRule::UpdateCost) are begun first. The ticket is complete when it is
// returned.
class WholeParameterExecutor final : public Executor {
 public:
  // `workspaces`: for each parameter that is updated at the same time `workspace_bytes`, 64-byte
  // aligned, as much as any task's rule wants (UpdateRule::WorkspaceBytes). Threads and memory
  // outlive the executor.
  WholeParameterExecutor(WorkerThreads* threads, DriverKind driver, void* workspaces,
                         int64_t workspace_bytes)
      : threads_(threads),
        driver_(driver),
        workspaces_(static_cast<char*>(workspaces)),
        workspace_bytes_(workspace_bytes) {}

  // The span of a task is its whole parameter. Its workspace is filled in here.
  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override;

 private:
  struct Work {
    int64_t cost = 0;
    const UpdateTask* task = nullptr;
  };

  WorkerThreads* const threads_;
  const DriverKind driver_;
  char* const workspaces_;
  const int64_t workspace_bytes_;
  std::vector<Work> order_;  // of the tasks that are being run
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CPU_WHOLE_PARAMETER_EXECUTOR_H_
