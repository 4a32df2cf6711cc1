// The lives of one optimizer's group. Each life is a Group, which replaces the group that failed
// before it.
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

// Keeps the present life and the one before. While some ranks already form the present life,
// survivors of the former one still have to be told why it failed. No call to the former life
// changes the present one. Thread-compatible; clock and callbacks as in Group.
class GroupLives {
 public:
  GroupLives(std::string optimizer, GroupOptions options);

  // As Group::Join. A request with state, or one that begins anew, begins the next life of a group
  // that has failed (Group::GivesWayTo). A retry goes to the life that answered the first attempt.
  absl::StatusOr<JoinReply> Join(const JoinRequest& request, absl::Time now);

  // The life that the caller is a member of. StaleIncarnation for a member of neither life.
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
  std::unique_ptr<Group> former_;  // null for the first life
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_GROUP_LIVES_H_
