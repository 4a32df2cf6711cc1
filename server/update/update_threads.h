// Runs a rule over many spans on a fixed set of threads.
#ifndef OPTSHARD_SERVER_UPDATE_UPDATE_THREADS_H_
#define OPTSHARD_SERVER_UPDATE_UPDATE_THREADS_H_

#include <memory>

#include "absl/types/span.h"
#include "server/update/update_rule.h"

namespace optshard {

struct SpanTask {
  const Coefficients* coefficients = nullptr;
  SpanUpdate span;
};

// Bound to the thread that calls Run, which works too; threads - 1 more are kept, on the memory
// node on which the thread that made them ran: memory that they touch first is near. The split
// never changes bits: rules are element-wise.
class UpdateThreads {
 public:
  explicit UpdateThreads(int threads);  // less than 1 counts as 1
  ~UpdateThreads();

  // Returns when every span is updated.
  void Run(const UpdateRule& rule, DriverKind driver, absl::Span<const SpanTask> tasks);

  int threads() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_UPDATE_THREADS_H_
