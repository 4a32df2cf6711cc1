#include "server/update/cpu/span_executor.h"

#include <algorithm>
#include <cstdint>

#include "common/block_code.h"

namespace optshard {
namespace {

// Whole cache lines of every type, so that no two threads write to one of an aligned span; and no
// block of codes is cut.
constexpr int64_t kCutElements = kCodeGrid;
// Waking a thread takes as long as updating about this many elements.
constexpr int64_t kElementsWorthAThread = 8192;

// Of a task that is updated in pieces: with Adam's float32 state a megabyte is in use at a time.
constexpr int64_t kPieceElements = 32768;

void Update(const UpdateRule& rule, DriverKind driver, const UpdateTask& task, int64_t first,
            int64_t last) {
  if (task.before_piece == nullptr) {
    return rule.Update(driver, *task.coefficients, task.span.Part(first, last - first));
  }
  for (int64_t begin = first; begin < last; begin += kPieceElements) {
    const SpanUpdate piece = task.span.Part(begin, std::min(kPieceElements, last - begin));
    (*task.before_piece)(piece);
    rule.Update(driver, *task.coefficients, piece);
  }
}

// Where in a task of `length` elements that starts at `start` of the whole the cut at `at` falls.
int64_t CutWithin(int64_t at, int64_t start, int64_t length) {
  if (at <= start) return 0;
  if (at >= start + length) return length;
  return (at - start) / kCutElements * kCutElements;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ticket>> SpanExecutor::Start(const ExecutionContext&,
                                                            const UpdateRule& rule,
                                                            absl::Span<const UpdateTask> tasks) {
  Run(rule, tasks);
  return CompleteTicket();
}

void SpanExecutor::Run(const UpdateRule& rule, absl::Span<const UpdateTask> tasks) {
  int64_t elements = 0;
  for (const UpdateTask& task : tasks) elements += task.span.elements;
  const auto parts = static_cast<int>(std::min<int64_t>(
      threads_->threads(), std::max<int64_t>(1, elements / kElementsWorthAThread)));
  // Equal parts up to kCutElements.
  threads_->Run(parts, [&](int part) {
    const int64_t from = elements * part / parts;
    const int64_t to = elements * (part + 1) / parts;
    int64_t start = 0;
    for (const UpdateTask& task : tasks) {
      const int64_t length = task.span.elements;
      const int64_t first = CutWithin(from, start, length);
      const int64_t last = CutWithin(to, start, length);
      if (first < last) Update(rule, driver_, task, first, last);
      start += length;
    }
  });
}

}  // namespace optshard
