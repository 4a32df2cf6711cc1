// What a trainer's memory or LibTorch refuses, as a status that all ranks can be told.
#ifndef OPTSHARD_CLIENT_OWNER_CAUGHT_ERRORS_H_
#define OPTSHARD_CLIENT_OWNER_CAUGHT_ERRORS_H_

#include <exception>

#include "absl/status/status.h"
#include "client/status_error.h"

namespace optshard {

// What `function` returns, or throws.
template <typename Function>
absl::Status Trying(const Function& function) {
  try {
    return function();
  } catch (const StatusError& error) {
    return error.status();
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(error.what());
  }
}

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CAUGHT_ERRORS_H_
