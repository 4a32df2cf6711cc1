// Updates by any rule, on the threads of a host.
#ifndef OPTSHARD_SERVER_UPDATE_CPU_CPU_EXECUTOR_H_
#define OPTSHARD_SERVER_UPDATE_CPU_CPU_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/update/cpu/span_executor.h"
#include "server/update/cpu/whole_parameter_executor.h"
#include "server/update/executor.h"

namespace optshard {

// The ticket is complete when it is returned.
class CpuExecutor final : public Executor {
 public:
  // An ExecutorFactory. Cannot fail.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const HostResources& host);

  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override;

 private:
  explicit CpuExecutor(const HostResources& host)
      : spans_(host.threads, host.driver),
        whole_parameters_(host.threads, host.driver, host.workspaces, host.workspace_bytes) {}

  SpanExecutor spans_;
  WholeParameterExecutor whole_parameters_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CPU_CPU_EXECUTOR_H_
