#include "server/update/cpu/cpu_executor.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<Executor>> CpuExecutor::Create(const HostResources& host) {
  return std::unique_ptr<Executor>(new CpuExecutor(host));
}

absl::StatusOr<std::unique_ptr<Ticket>> CpuExecutor::Start(const ExecutionContext& context,
                                                           const UpdateRule& rule,
                                                           absl::Span<const UpdateTask> tasks) {
  if (rule.spec().element_wise) return spans_.Start(context, rule, tasks);
  return whole_parameters_.Start(context, rule, tasks);
}

}  // namespace optshard
