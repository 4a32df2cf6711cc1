// The parent of a shard server, which holds the server's descriptors so that they outlive it.
#ifndef OPTSHARD_SERVER_NODE_KEEPER_H_
#define OPTSHARD_SERVER_NODE_KEEPER_H_

#include <functional>

#include "absl/time/time.h"
#include "server/node/keeper_link.h"

namespace optshard {

struct KeeperOptions {
  // The server: runs in a child; its process exits with what it returns, as of exit().
  std::function<int(KeeperLink&)> serve;

  // Before a server is started again: the first time at once, then after pauses that double, until
  // one has lived for longer than `long_life`.
  absl::Duration first_pause = absl::Milliseconds(100);
  absl::Duration longest_pause = absl::Seconds(10);
  absl::Duration long_life = absl::Seconds(10);

  // For what the server asks its keeper, which does nothing that takes long.
  absl::Duration answer_timeout = absl::Seconds(10);
};

// Forks the server and keeps watch until it has ended for good. Call it before the process has any
// other thread; `serve` may start some. The calling process becomes the keeper, "optshard-keeper"
// for ps: it maps nothing of what it holds. Returns only there, for main to return at once:
//
//  - A server that exits with 0 ends the keeper with the same code, and what was kept is let go.
//  - A server that a signal kills, or that gives up with another code, is reaped; then, where units
//    are kept, the next one is started with them, however often. Where none is kept nothing would
//    be saved: its code, or 128 + the signal, as shells have it.
//  - SIGTERM and SIGINT are passed on to the server as SIGTERM, and whatever it then dies of, no
//    other is started: its code, or 128 + the signal. That is also so where they come between two
//    servers: the last one did not end in order. A server that blocks SIGTERM should do so before
//    this call, or a signal that comes at its start kills it; it gets the mask as it is at the
//    call.
//  - 1 where the first server cannot be started, said in the log.
//
// A server that is stopped has not died. Where the keeper is killed, `serve` goes on: what
// it does then (KeeperLink::KeeperGone) is its own decision.
// As process 1 of a container the keeper also reaps orphans.
int RunKeeper(const KeeperOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_KEEPER_H_
