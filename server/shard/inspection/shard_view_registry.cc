#include "server/shard/inspection/shard_view_registry.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace optshard {
namespace {

std::string Quoted(absl::Span<const std::string> names) {
  if (names.empty()) return "none";
  return absl::StrCat("\"", absl::StrJoin(names, "\", \""), "\"");
}

}  // namespace

void ShardViewRegistry::AddRank(Rank rank) {
  absl::MutexLock lock(&mutex_);
  ranks_.insert(rank);
}

absl::Status ShardViewRegistry::Register(absl::string_view optimizer, Rank rank,
                                         const ShardView* view) {
  absl::MutexLock lock(&mutex_);
  ranks_.insert(rank);
  Entry entry;
  entry.view = view;
  if (entries_.emplace(Key(optimizer, rank), entry).second) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of optimizer \"", optimizer,
                                               "\" is already served by this process"));
}

void ShardViewRegistry::Unregister(absl::string_view optimizer, Rank rank) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(Key(optimizer, rank));
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.leaving = true;
  mutex_.Await(absl::Condition(
      +[](Entry* leaving) { return leaving->uses == 0; }, &entry));
  entries_.erase(found);
}

absl::StatusOr<Rank> ShardViewRegistry::RankOf(const Selector& selector) const {
  const std::string hosted = ranks_.empty() ? "none" : absl::StrJoin(ranks_, ", ");
  if (selector.rank.has_value()) {
    if (ranks_.count(*selector.rank) > 0) return *selector.rank;
    return absl::NotFoundError(absl::StrCat("rank ", *selector.rank,
                                            " is not hosted here; the hosted ranks are: ", hosted));
  }
  if (ranks_.size() == 1) return *ranks_.begin();
  if (ranks_.empty()) return absl::UnavailableError("no rank is hosted here yet");
  return absl::InvalidArgumentError(
      absl::StrCat("several ranks are hosted here; set `rank` to one of: ", hosted));
}

absl::StatusOr<ShardViewRegistry::Use> ShardViewRegistry::Find(const Selector& selector) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Rank> rank = RankOf(selector);
  if (!rank.ok()) return rank.status();
  std::vector<std::string> optimizers;  // with a view of the rank
  for (const auto& [key, entry] : entries_) {
    if (key.second == *rank && !entry.leaving) optimizers.push_back(key.first);
  }
  if (selector.optimizer.empty() && optimizers.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *rank,
                     " has several optimizers; set `optimizer` to one of: ", Quoted(optimizers)));
  }
  const std::string optimizer =
      selector.optimizer.empty() && !optimizers.empty() ? optimizers[0] : selector.optimizer;
  const auto found = entries_.find(Key(optimizer, *rank));
  if (found == entries_.end() || found->second.leaving) {
    return absl::UnavailableError(absl::StrCat(
        optimizer.empty()
            ? absl::StrCat("rank ", *rank, " has no optimizer")
            : absl::StrCat("optimizer \"", optimizer, "\" of rank ", *rank, " is not served here"),
        ": it has not joined its job yet, or has left it; the optimizers served are: ",
        Quoted(optimizers)));
  }
  ++found->second.uses;
  return Use(this, found->first, found->second.view);
}

void ShardViewRegistry::EndUse(const Key& key) {
  absl::MutexLock lock(&mutex_);
  --entries_.find(key)->second.uses;
}

}  // namespace optshard
