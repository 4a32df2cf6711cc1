// The views of this process's shard owners, by optimizer and rank.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_REGISTRY_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_REGISTRY_H_

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/ids.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// Thread-safe.
class ShardViewRegistry {
 public:
  // Which view a caller asks for.
  struct Selector {
    std::string optimizer;      // empty: the only one
    absl::optional<Rank> rank;  // absent: the only one
  };

 private:
  using Key = std::pair<std::string, Rank>;  // optimizer, rank

 public:
  // A view in use. It stays registered, and so valid, until this is destroyed. Keep it briefly.
  class Use {
   public:
    Use(Use&& other) noexcept
        : registry_(std::exchange(other.registry_, nullptr)),
          key_(std::move(other.key_)),
          view_(other.view_) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (registry_ != nullptr) registry_->EndUse(key_);
    }

    const ShardView& operator*() const { return *view_; }
    const ShardView* operator->() const { return view_; }

   private:
    friend class ShardViewRegistry;
    Use(ShardViewRegistry* registry, Key key, const ShardView* view)
        : registry_(registry), key_(std::move(key)), view_(view) {}

    ShardViewRegistry* registry_;
    Key key_;
    const ShardView* view_;
  };

  // This process hosts the rank, whether or not the rank has a view yet. A call that names no rank
  // is refused as soon as there are two.
  void AddRank(Rank rank);

  // Adds the rank, too. ALREADY_EXISTS where the rank of the optimizer has a view.
  absl::Status Register(absl::string_view optimizer, Rank rank, const ShardView* view);

  // From now on nobody finds the view; returns when its last use has ended. Does nothing where
  // there is no view.
  void Unregister(absl::string_view optimizer, Rank rank);

  // Every error lists what there is.
  //   INVALID_ARGUMENT  several ranks are hosted, or several optimizers have a view, and the caller
  //                     names none
  //   NOT_FOUND         the rank is not hosted here
  //   UNAVAILABLE       the optimizer has no view of the rank: it has not joined its job yet, or
  //   has
  //                     left it
  absl::StatusOr<Use> Find(const Selector& selector);

 private:
  struct Entry {
    const ShardView* view = nullptr;
    int uses = 0;
    bool leaving = false;
  };

  void EndUse(const Key& key);
  // The selector's rank, or the only one.
  absl::StatusOr<Rank> RankOf(const Selector& selector) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::set<Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_REGISTRY_H_
