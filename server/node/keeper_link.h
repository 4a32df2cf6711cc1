// The shard server's end of the connection to its keeper (keeper.h).
#ifndef OPTSHARD_SERVER_NODE_KEEPER_LINK_H_
#define OPTSHARD_SERVER_NODE_KEEPER_LINK_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/link/unique_fd.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/keeper_line.h"

namespace optshard {

// Thread-safe. Keep and Forget wait for the keeper's answer, one call after the other.
//
// Both return UNAVAILABLE where the keeper has ended: this server goes on, but when it dies no
// other is started and its memory is lost. Both return DEADLINE_EXCEEDED where the keeper did not
// answer in time (it is stopped, or starved): it holds either the old or the new unit, whole.
class KeeperLink final : public DescriptorKeeper {
 public:
  // What the keeper makes for each server that it starts.
  struct Options {
    UniqueFd line;
    std::vector<KeptUnit> inherited;
    int life = 1;
    pid_t keeper = 0;
    absl::Duration answer_timeout;
  };
  explicit KeeperLink(Options options);

  // Returns once the keeper holds duplicates: from then on they outlive this process. Replaces what
  // it held under the name. Also INVALID_ARGUMENT for an empty or long name, or no or too many
  // descriptors; RESOURCE_EXHAUSTED where the keeper may hold no more, and then what it held under
  // the name stays.
  absl::Status Keep(absl::string_view name, absl::Span<const int> descriptors) override;

  // OK also where nothing is held under the name.
  absl::Status Forget(absl::string_view name) override;

  pid_t pid() const override { return keeper_; }

  // The units that the predecessor left, by name; the keeper still holds them. Empty for the first
  // server and on every later call. Units that are not taken are closed with this object.
  std::vector<KeptUnit> TakeInherited();

  // 1 for the first server of this keeper, 2 for the one started after it died, and so on.
  int life() const { return life_; }

  // Whether the keeper has ended. Nothing is lost yet, but the server should log it.
  bool KeeperGone() const;

  // A descriptor for poll(). Without requested events it reports POLLHUP once the keeper has ended.
  int fd() const { return line_.get(); }

 private:
  absl::Status Ask(KeeperRequest::Kind kind, absl::string_view name,
                   absl::Span<const int> descriptors);
  absl::Status WaitForAnswer(uint64_t number, absl::Time deadline) const;

  const UniqueFd line_;
  const int life_;
  const pid_t keeper_;
  const absl::Duration answer_timeout_;
  absl::Mutex mutex_;
  std::vector<KeptUnit> inherited_ ABSL_GUARDED_BY(mutex_);
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_KEEPER_LINK_H_
