// Updates by element-wise rules, whose spans may be cut, on the threads of a host.
#ifndef OPTSHARD_SERVER_UPDATE_CPU_SPAN_EXECUTOR_H_
#define OPTSHARD_SERVER_UPDATE_CPU_SPAN_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/update/cpu/worker_threads.h"
#include "server/update/executor.h"

namespace optshard {

// Each thread takes an equal share of all elements. The ticket is complete when it is returned.
class SpanExecutor final : public Executor {
 public:
  // `threads` outlives it.
  SpanExecutor(WorkerThreads* threads, DriverKind driver) : threads_(threads), driver_(driver) {}

  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override;

  // Returns when every span is updated.
  void Run(const UpdateRule& rule, absl::Span<const UpdateTask> tasks);

 private:
  WorkerThreads* const threads_;
  const DriverKind driver_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CPU_SPAN_EXECUTOR_H_
