// Who runs updates: a host's threads, a device's stream.
#ifndef OPTSHARD_SERVER_UPDATE_EXECUTOR_H_
#define OPTSHARD_SERVER_UPDATE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ticket.h"
#include "server/update/update_rule.h"

namespace optshard {

// Called before a piece of a span is updated, on the thread that does so.
using BeforePiece = std::function<void(const SpanUpdate& piece)>;

struct UpdateTask {
  const Coefficients* coefficients = nullptr;
  SpanUpdate span;
  // Null, or of an element-wise rule: the span is updated in pieces that a core's cache holds.
  const BeforePiece* before_piece = nullptr;
};

// Bound to the step's thread. One bit of a result never depends on which executor of the same kind
// of memory runs the update, or on how many threads.
class Executor {
 public:
  virtual ~Executor() = default;

  // Starts the updates, in any order and beside each other; no two of them share an element that
  // one writes. They are done when the ticket's Wait returns OK, and may not have begun before.
  // Until Wait has returned OK or the ticket is destroyed, the tasks and all that they point to
  // stay where they are; the destructor waits for what still reads or writes them. Where the
  // updates run on a device, nothing here waits for it: an error of an update may then come as that
  // of a later call, and the tasks, with what of them lies on the host, may go when this returns.
  virtual absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                        const UpdateRule& rule,
                                                        absl::Span<const UpdateTask> tasks) = 0;

  // UNIMPLEMENTED where Start would refuse the rule.
  virtual absl::Status CheckRuns(const UpdateRule&) const { return absl::OkStatus(); }
};

class WorkerThreads;

// What a host lends an executor; outlives it. An executor of a device gets nothing.
struct HostResources {
  WorkerThreads* threads = nullptr;
  DriverKind driver = DriverKind::kSimd;
  // As WholeParameterExecutor wants them.
  void* workspaces = nullptr;
  int64_t workspace_bytes = 0;
};

// Makes the executor of a rank, for all rules. Never null. Its error is that of
// StepEngine::Create.
using ExecutorFactory =
    std::function<absl::StatusOr<std::unique_ptr<Executor>>(const HostResources& host)>;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_EXECUTOR_H_
