// An eventfd that ends a thread's watch over other descriptors.
#ifndef OPTSHARD_COMMON_LINK_STOP_EVENT_H_
#define OPTSHARD_COMMON_LINK_STOP_EVENT_H_

#include "absl/status/statusor.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Move-only; const methods from any thread.
class StopEvent {
 public:
  // RESOURCE_EXHAUSTED where this process may open no more descriptors.
  static absl::StatusOr<StopEvent> Create();

  // From now on, for ever, fd() is readable.
  void Signal() const;

  int fd() const { return fd_.get(); }  // for poll: POLLIN

 private:
  explicit StopEvent(UniqueFd fd) : fd_(static_cast<UniqueFd&&>(fd)) {}

  UniqueFd fd_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_STOP_EVENT_H_
