#include "server/shard/inspection/shard_view_registry.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {

absl::Status ShardViewRegistry::Register(absl::string_view optimizer, const ShardView* view) {
  absl::MutexLock lock(&mutex_);
  Entry entry;
  entry.view = view;
  if (entries_.emplace(std::string(optimizer), entry).second) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("optimizer \"", optimizer, "\" is served by this process already"));
}

void ShardViewRegistry::Unregister(absl::string_view optimizer) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(std::string(optimizer));
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.leaving = true;
  mutex_.Await(absl::Condition(
      +[](Entry* leaving) { return leaving->uses == 0; }, &entry));
  entries_.erase(found);
}

absl::StatusOr<ShardViewRegistry::Use> ShardViewRegistry::Find(absl::string_view optimizer) {
  absl::MutexLock lock(&mutex_);
  auto found = entries_.find(std::string(optimizer));
  if (optimizer.empty() && found == entries_.end()) {
    if (entries_.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("this process serves several optimizers; name one of: ", Known()));
    }
    found = entries_.begin();
  }
  if (found == entries_.end() || found->second.leaving) {
    return absl::UnavailableError(absl::StrCat(
        optimizer.empty() ? "no optimizer" : absl::StrCat("optimizer \"", optimizer, "\""),
        " is not served here: it has not joined its job yet, or has left it; there are: ",
        Known()));
  }
  ++found->second.uses;
  return Use(this, found->first, found->second.view);
}

void ShardViewRegistry::EndUse(const std::string& optimizer) {
  absl::MutexLock lock(&mutex_);
  --entries_.find(optimizer)->second.uses;
}

std::string ShardViewRegistry::Known() const {
  if (entries_.empty()) return "none";
  return absl::StrJoin(entries_, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "\"", entry.first, "\"");
  });
}

}  // namespace optshard
