// The parent of a shard server, which holds the server's descriptors so that they outlive it.
#ifndef OPTSHARD_SERVER_NODE_KEEPER_H_
#define OPTSHARD_SERVER_NODE_KEEPER_H_

#include <functional>

#include "absl/time/time.h"
#include "server/node/keeper_link.h"

namespace optshard {

struct KeeperOptions {
  // The server. It runs in a child process, which calls exit() with its result.
  std::function<int(KeeperLink&)> serve;

  // Pauses between restarts. The first restart comes at once; later pauses double, and begin again
  // after a server that has lived for longer than `long_life`.
  absl::Duration first_pause = absl::Milliseconds(100);
  absl::Duration longest_pause = absl::Seconds(10);
  absl::Duration long_life = absl::Seconds(10);

  // How long the server waits for its keeper's answer; the keeper does nothing that takes long.
  absl::Duration answer_timeout = absl::Seconds(10);
};

// Forks the server and watches it until it has ended for good. Call it while the process has one
// thread only; `serve` may start others. The calling process becomes the keeper, which `ps` shows
// as "optshard-keeper". It maps none of the memory that it holds. Returns only in the keeper, with
// the exit code that main should return at once:
//
//  - A server that exits with 0 ends the keeper with 0; the memory is released.
//  - A server that a signal kills, or that gives up with another code, is reaped. Where units
//    are kept, the next server is started with them, however often. Where none is kept nothing
//    would be saved: the result is its code, or 128 + the signal as in shells.
//  - SIGTERM and SIGINT are passed on to the server as SIGTERM, and no other server is
//    started, whatever this one then dies of: the result is its code, or 128 + the signal. The same
//    holds for a signal between two servers, with the result of the last one. A server that blocks
//    SIGTERM should do so before this call: it inherits the signal mask, and a signal that arrives
//    while it starts would kill it.
//  - 1 where the first server cannot be started; the log says why.
//
// A stopped server (SIGSTOP) has not died. Where the keeper is killed, `serve` goes on and decides
// itself what to do (KeeperLink::KeeperGone).
// As process 1 of a container the keeper also reaps orphans.
int RunKeeper(const KeeperOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_KEEPER_H_
