// One message to or from one peer, while it is under way.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_TRANSFER_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_TRANSFER_H_

#include <string>

#include "absl/time/time.h"

namespace optshard {

// Bound to a thread, except Abort.
class Transfer {
 public:
  enum class Outcome {
    kDone,      // received, or handed to the kernel
    kAborted,   // by Abort
    kTimedOut,  // not done in time; Gloo then closes all its connections
    kBroken,    // the connection failed
  };

  virtual ~Transfer() = default;

  // Where the outcome is kBroken, `why` gets the transport's explanation.
  virtual Outcome Wait(absl::Duration timeout, std::string* why) = 0;

  // Ends the Wait that is going on, or else the next one, with kAborted (or kBroken, where the
  // connection failed; a transport may also report that the transfer is done). Any thread.
  virtual void Abort() = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_TRANSFER_H_
