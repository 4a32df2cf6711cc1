// Operations that run beside the thread which starts them.
#ifndef OPTSHARD_COMMON_TICKET_H_
#define OPTSHARD_COMMON_TICKET_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace optshard {

// Where an operation's memory lies, and on which stream the operation runs there.
struct ExecutionContext {
  std::string device = "cpu";
  void* stream = nullptr;  // opaque: a CUDA stream, a fake's stream; null on hosts
};

// An operation that has been started. Bound to the thread that waits for it. Wait is called once.
class Ticket {
 public:
  virtual ~Ticket() = default;

  // Blocks until the operation is complete here, has failed, or the deadline has passed. After OK,
  // outputs may be read and inputs written. May compute on the calling thread.
  virtual absl::Status Wait(absl::Time deadline) = 0;

  // Makes later work on the context's stream wait for the operation, without blocking the host.
  // FAILED_PRECONDITION where the operation's memory is the host's: wait instead.
  virtual absl::Status OrderOn(const ExecutionContext& context) = 0;
};

// Of an operation on a host that was complete when it returned.
std::unique_ptr<Ticket> CompleteTicket();

}  // namespace optshard

#endif  // OPTSHARD_COMMON_TICKET_H_
