#include "server/update/cuda/sequenced_rule.h"

#include "server/update/cuda/factored_sequence.h"
#include "server/update/cuda/kernel_rules.h"
#include "server/update/cuda/norm_scaled_sequence.h"
#include "server/update/cuda/orthogonal_sequence.h"

namespace optshard {

std::unique_ptr<SequencedRule> SequencedRule::Find(const std::string& rule) {
  if (const NormScaledRule* const found = KernelRules<NormScaledRule>::Find(rule)) {
    return std::make_unique<NormScaledSequence>(*found);
  }
  if (const FactoredRule* const found = KernelRules<FactoredRule>::Find(rule)) {
    return std::make_unique<FactoredSequence>(*found);
  }
  if (const OrthogonalRule* const found = KernelRules<OrthogonalRule>::Find(rule)) {
    return std::make_unique<OrthogonalSequence>(*found);
  }
  return nullptr;
}

int64_t SequencedRule::WorkspaceBytes(absl::Span<const UpdateTask> tasks) const {
  int64_t bytes = 0;
  for (const UpdateTask& task : tasks) bytes += task.span.elements > 0 ? BytesOf(task) : 0;
  return bytes;
}

std::vector<absl::Span<const UpdateTask>> SequencedRule::Batches(absl::Span<const UpdateTask> tasks,
                                                                 int64_t most_bytes) const {
  std::vector<absl::Span<const UpdateTask>> batches;
  while (!tasks.empty()) {
    size_t count = 1;
    int64_t bytes = WorkspaceBytes(tasks.first(1));
    for (; count < tasks.size(); ++count) {
      bytes += WorkspaceBytes(tasks.subspan(count, 1));
      if (bytes > most_bytes) break;
    }
    if (WorkspaceBytes(tasks.first(count)) > 0) batches.push_back(tasks.first(count));
    tasks.remove_prefix(count);
  }
  return batches;
}

}  // namespace optshard
