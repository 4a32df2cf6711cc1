#include "server/checkpoint/newest_checkpoint.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/checkpoint/name_escape.h"

namespace optshard {

absl::StatusOr<NewestCheckpoint> FindNewestCheckpoint(
    Directory& root, absl::string_view job, absl::string_view optimizer,
    const std::map<std::string, std::string>& known_damage) {
  auto entries = ListCheckpoints(root);
  if (!entries.ok()) return entries.status();
  for (CheckpointEntry& entry : *entries) {
    const auto known = known_damage.find(entry.name);
    if (known == known_damage.end()) continue;
    entry.state = CheckpointState::kDamaged;
    entry.problem = absl::DataLossError(known->second);
  }
  NewestCheckpoint newest;
  std::set<std::string> others;
  for (const CheckpointEntry& entry : *entries) {
    if (entry.state != CheckpointState::kCommitted) continue;
    if (entry.job != job || entry.optimizer != optimizer) {
      others.insert(absl::StrCat("job \"", EscapeName(entry.job), "\", optimizer \"",
                                 EscapeName(entry.optimizer), "\""));
    } else if (!newest.entry.has_value()) {
      newest.entry = entry;
    }
  }
  newest.others = absl::StrJoin(others, "; ");
  std::vector<std::string> passed_over;
  for (const CheckpointEntry& entry : *entries) {
    const bool is_bad =
        entry.state == CheckpointState::kDamaged || entry.state == CheckpointState::kUnreadable;
    const bool is_older = newest.entry.has_value() && entry.parsed.step < newest.entry->parsed.step;
    if (!is_bad || (is_older && known_damage.count(entry.name) == 0)) continue;
    passed_over.push_back(absl::StrCat(entry.name, ": ", entry.problem.message()));
  }
  newest.passed_over = absl::StrJoin(passed_over, "; ");
  return newest;
}

}  // namespace optshard
