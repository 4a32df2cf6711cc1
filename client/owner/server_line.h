// A trainer's line to the shard server of its node: the socket it has attached over, the doorbell
// it was given, and the watch over the server's life.
#ifndef OPTSHARD_CLIENT_OWNER_SERVER_LINE_H_
#define OPTSHARD_CLIENT_OWNER_SERVER_LINE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/attach/attachment.h"
#include "common/attach/doorbell.h"
#include "common/attach/write_counts.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/link/local_socket.h"
#include "common/link/process_handle.h"
#include "common/link/stop_event.h"
#include "common/link/unique_fd.h"
#include "server/shard/snapshot/parameter_memory.h"

namespace optshard {

// Bound to the trainer's thread, except where noted. In a forked child nothing of it may be
// used, and destroying it leaves the parent's attachment alone.
class ServerLine {
 public:
  // Attaches. UNAVAILABLE naming the socket where no server listens within `connect_timeout`;
  // PERMISSION_DENIED; and what proto/optshard/v1/attach.proto says of its answer, which comes
  // within the request's join_timeout.
  static absl::StatusOr<std::unique_ptr<ServerLine>> Open(const LocalAddress& address,
                                                          const AttachRequest& request,
                                                          absl::Duration connect_timeout);
  ~ServerLine();  // detaches

  // Detaches cleanly. Idempotent.
  void Detach();

  // The answer to a request for param groups. Where its status is OK, the doorbell is another one
  // from now on, and there are descriptors of the added memory.
  struct Added {
    AddGroupsReply reply;
    ReplicaSegments::Descriptors replica;
  };
  // Asks, for this rank. Not OK where there is no usable answer by the deadline
  // (DEADLINE_EXCEEDED), or the server goes before (what gone() says).
  absl::StatusOr<Added> AddGroups(Rank rank, const AddGroupsRequest& request, absl::Time deadline);

  const AttachReply& reply() const { return reply_; }
  Doorbell& doorbell() { return doorbell_; }

  // Descriptors of the rank's memory. They can be taken once.
  ReplicaSegments::Descriptors TakeReplica() { return std::move(replica_); }

  // What counts the trainer's writes to the values of its parameters, for the server to ask. Null,
  // as at the beginning: nobody counts them, so they are expected.
  void SetWrites(std::shared_ptr<const TrainerWrites> writes);
  WriteCount writes() const;  // any thread

  // Not OK once the server has ended or hung up: UNAVAILABLE, or the reason that the server gave.
  // Whoever waits for a reply at the doorbell is then woken. Any thread.
  absl::Status gone() const;
  // Whether another server takes over if this one ends: a living keeper holds its memory, and it
  // has not said goodbye. Once it is gone and does not come back, it never will. Any thread.
  bool comes_back() const;

  // For messages: "the shard server at PATH (process 7)". Any thread.
  const std::string& name() const { return name_; }

 private:
  ServerLine(std::string name, std::unique_ptr<LocalSocket> socket, ProcessHandle server,
             absl::optional<ProcessHandle> keeper, AttachReply reply, Doorbell doorbell,
             StopEvent stop, UniqueFd write_counts);
  void Watch();

  const pid_t process_;
  const std::string name_;
  const std::unique_ptr<LocalSocket> socket_;
  const ProcessHandle server_;
  const absl::optional<ProcessHandle> keeper_;  // none: there was none, or it had ended already
  const AttachReply reply_;
  Doorbell doorbell_;  // replaced by the trainer's thread, with the mutex held
  ReplicaSegments::Descriptors replica_;
  mutable absl::Mutex mutex_;
  struct Answer {
    AddGroupsReply reply;
    std::vector<UniqueFd> descriptors;
  };
  absl::optional<Answer> answer_ ABSL_GUARDED_BY(mutex_);
  absl::Status gone_ ABSL_GUARDED_BY(mutex_);
  bool said_goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const TrainerWrites> writes_ ABSL_GUARDED_BY(mutex_);
  const StopEvent stop_;  // ends the watch
  const UniqueFd write_counts_;
  std::thread watcher_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_SERVER_LINE_H_
