#include "server/update/cpu/whole_parameter_executor.h"

#include <algorithm>
#include <atomic>

namespace optshard {
namespace {

int64_t CostOf(const UpdateRule& rule, const SpanUpdate& span) {
  const int64_t cost = rule.UpdateCost(span.shape);
  return cost == 0 ? span.elements : cost;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ticket>> WholeParameterExecutor::Start(
    const ExecutionContext&, const UpdateRule& rule, absl::Span<const UpdateTask> tasks) {
  if (tasks.empty()) return CompleteTicket();
  order_.clear();
  for (const UpdateTask& task : tasks) order_.push_back({CostOf(rule, task.span), &task});
  std::stable_sort(order_.begin(), order_.end(),
                   [](const Work& a, const Work& b) { return a.cost > b.cost; });
  std::atomic<size_t> next{0};
  const auto parts = static_cast<int>(std::min<size_t>(threads_->threads(), tasks.size()));
  threads_->Run(parts, [&](int part) {
    for (size_t i = next++; i < order_.size(); i = next++) {
      const UpdateTask& task = *order_[i].task;
      SpanUpdate span = task.span;
      span.workspace = workspaces_ + part * workspace_bytes_;
      rule.Update(driver_, *task.coefficients, span);
    }
  });
  return CompleteTicket();
}

}  // namespace optshard
