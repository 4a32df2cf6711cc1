// Where trainers attach to the ranks of a shard server: its Unix socket. Domain class over
// common/link; proto/optshard/v1/attach.proto has the messages.
#ifndef OPTSHARD_SERVER_NODE_ATTACH_SERVER_H_
#define OPTSHARD_SERVER_NODE_ATTACH_SERVER_H_

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/link/local_socket.h"
#include "common/link/process_handle.h"
#include "common/link/stop_event.h"
#include "server/node/node_owners.h"

namespace optshard {

// Has a thread for each connection. Once the trainer is attached the thread sleeps until the
// trainer adds param groups or is gone. Thread-safe.
class AttachServer {
 public:
  // Listens when it returns. `owners` outlives the server. Errors as LocalListener::Listen (another
  // server listens there, the path is a link, others may write to the folder) and as
  // StopEvent::Create.
  static absl::StatusOr<std::unique_ptr<AttachServer>> Start(const LocalAddress& address,
                                                             NodeOwners* owners);
  ~AttachServer();

  // Admits no more trainers. Those that are attached stay.
  void StopListening();

  // Sends `reason` to the attached trainers, closes their connections and ends all threads.
  // Idempotent.
  void Stop(const absl::Status& reason);

 private:
  struct Connection {
    std::unique_ptr<LocalSocket> socket;
    std::atomic<bool> asked{false};  // the request has arrived
    std::atomic<bool> done{false};
    std::thread thread;
  };

  AttachServer(std::unique_ptr<LocalListener> listener, StopEvent stop, NodeOwners* owners);

  void Accept();
  void Serve(Connection& connection);
  absl::StatusOr<NodeOwners::Admission> Admit(Connection& connection);
  bool StillHere(const LocalSocket& socket);
  std::string ServeUntilGone(LocalSocket& socket, const NodeOwners::Admission& admission);
  bool AnswerRequest(LocalSocket& socket, const NodeOwners::Admission& admission);
  void Reap(bool all);

  const std::unique_ptr<LocalListener> listener_;
  NodeOwners* const owners_;
  const StopEvent stop_;  // ends all watching
  absl::Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // not OK: it stops
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_ATTACH_SERVER_H_
