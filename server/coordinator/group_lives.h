// One optimizer's groups, each in place of one that failed: the lives of the group.
#ifndef OPTSHARD_SERVER_COORDINATOR_GROUP_LIVES_H_
#define OPTSHARD_SERVER_COORDINATOR_GROUP_LIVES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "server/coordinator/group.h"

namespace optshard {

// Knows the present life and the one before: survivors still have to hear, from the life that
// admitted them, why it failed, while others already form the next. Nothing that comes to the
// former life touches the present one. Thread-compatible; clock and callbacks as in Group.
class GroupLives {
 public:
  GroupLives(std::string optimizer, GroupOptions options);

  // As Group::Join. A request that brings state, to a group that has failed, begins the next life
  // (Group::GivesWayTo); a retry goes to the life that the first attempt came to.
  absl::StatusOr<JoinReply> Join(const JoinRequest& request, absl::Time now);

  // The life that the caller is in. As Group::CheckIncarnation: a caller of neither life gets
  // StaleIncarnation.
  absl::StatusOr<Group*> Find(const MemberId& caller) const;

  // As Group::LeftWhileForming, of either life.
  bool LeftWhileForming(const MemberId& caller) const;

  Group& present() { return *present_; }
  const Group& present() const { return *present_; }

  void Tick(absl::Time now);
  void Shutdown(const absl::Status& reason);
  bool Done(absl::Time now) const;
  Deferred TakeDeferred();

 private:
  std::unique_ptr<Group> present_;
  std::unique_ptr<Group> former_;  // null: none
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_GROUP_LIVES_H_
