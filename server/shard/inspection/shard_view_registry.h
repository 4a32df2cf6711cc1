// The views of this process's shard owners, by optimizer.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_REGISTRY_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_REGISTRY_H_

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// Thread-safe.
class ShardViewRegistry {
 public:
  // A view in use: it stays registered, and so valid, until this is destroyed. Keep it briefly.
  class Use {
   public:
    Use(Use&& other) noexcept
        : registry_(std::exchange(other.registry_, nullptr)),
          optimizer_(std::move(other.optimizer_)),
          view_(other.view_) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (registry_ != nullptr) registry_->EndUse(optimizer_);
    }

    const ShardView& operator*() const { return *view_; }
    const ShardView* operator->() const { return view_; }

   private:
    friend class ShardViewRegistry;
    Use(ShardViewRegistry* registry, std::string optimizer, const ShardView* view)
        : registry_(registry), optimizer_(std::move(optimizer)), view_(view) {}

    ShardViewRegistry* registry_;
    std::string optimizer_;
    const ShardView* view_;
  };

  // ALREADY_EXISTS where the optimizer has a view.
  absl::Status Register(absl::string_view optimizer, const ShardView* view);

  // No use begins any more; returns when the last one has ended.
  void Unregister(absl::string_view optimizer);

  // An empty name is the only optimizer's. UNAVAILABLE where it has no view (yet), INVALID_ARGUMENT
  // where several have one and none was named; both say which there are.
  absl::StatusOr<Use> Find(absl::string_view optimizer);

 private:
  struct Entry {
    const ShardView* view = nullptr;
    int uses = 0;
    bool leaving = false;
  };

  void EndUse(const std::string& optimizer);
  std::string Known() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_VIEW_REGISTRY_H_
