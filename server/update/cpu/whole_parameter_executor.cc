#include "server/update/cpu/whole_parameter_executor.h"

#include <algorithm>
#include <atomic>

namespace optshard {

absl::StatusOr<std::unique_ptr<Ticket>> WholeParameterExecutor::Start(
    const ExecutionContext&, const UpdateRule& rule, absl::Span<const UpdateTask> tasks) {
  if (tasks.empty()) return CompleteTicket();
  order_.clear();
  for (const UpdateTask& task : tasks) order_.push_back(&task);
  std::stable_sort(order_.begin(), order_.end(), [](const UpdateTask* a, const UpdateTask* b) {
    return a->span.elements > b->span.elements;
  });
  std::atomic<size_t> next{0};
  const auto parts = static_cast<int>(std::min<size_t>(threads_->threads(), tasks.size()));
  threads_->Run(parts, [&](int part) {
    for (size_t i = next++; i < order_.size(); i = next++) {
      SpanUpdate span = order_[i]->span;
      span.workspace = workspaces_ + part * workspace_bytes_;
      rule.Update(driver_, *order_[i]->coefficients, span);
    }
  });
  return CompleteTicket();
}

}  // namespace optshard
