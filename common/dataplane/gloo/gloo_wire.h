// What the Gloo plane uses of Gloo: connections between ranks and messages over them. No Gloo type
// appears here, because the implementation is in a shared object of its own
// (docs/decisions/0002-gloo-in-its-own-shared-object.md). It throws no exceptions.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_WIRE_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/gloo/transfer.h"
#include "common/ids.h"

namespace optshard {

// Connections to all peers. Listen is called first, then Connect, both from one thread; the rest is
// thread-safe, Cut also meanwhile with Connect. Errors contain Gloo's message.
class GlooWire {
 public:
  struct Options {
    Rank rank = 0;
    int world_size = 0;
    std::string network;  // a network interface, or a numeric address of one
    absl::Duration connect_timeout;
  };

  // Closes what is open. Transfers may outlive it.
  virtual ~GlooWire() = default;

  // Opens a socket for one peer and returns its address in Gloo's encoding.
  virtual absl::StatusOr<std::string> Listen(Rank peer) = 0;

  // Returns once connected to the socket that the peer opened for this rank. UNAVAILABLE after
  // connect_timeout, which begins with each call, and at once when Cut is called.
  virtual absl::Status Connect(Rank peer, const std::string& address) = 0;

  // Messages with the same slot between two ranks match in order. The caller keeps the memory valid
  // until the transfer is done or the connections are closed.
  virtual absl::StatusOr<std::unique_ptr<Transfer>> Send(Rank peer, uint64_t slot, const void* data,
                                                         size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Transfer>> Receive(Rank peer, uint64_t slot, void* data,
                                                            size_t bytes) = 0;

  // Both close the connections, and return once no thread touches any transfer's memory any more.
  // Finish lets what was sent arrive; Cut resets the connections.
  virtual void Finish() = 0;
  virtual void Cut() = 0;
};

// The function that the shared object exports as `optshard_make_gloo_wire`. INVALID_ARGUMENT where
// there is no such network.
using MakeGlooWireFunction = void (*)(const GlooWire::Options& options,
                                      std::unique_ptr<GlooWire>* wire, absl::Status* status);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_WIRE_H_
