// How the torch::optim-style API reports errors: an exception that carries the absl::Status.
#ifndef OPTSHARD_CLIENT_STATUS_ERROR_H_
#define OPTSHARD_CLIENT_STATUS_ERROR_H_

#include <cstdint>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"

namespace optshard {

// what() is "CODE: message". status() has the payload too: ask common/errors.h's predicates, such
// as errors::IsPeerLost(error.status()), never the text.
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(absl::Status status);

  const absl::Status& status() const noexcept { return status_; }

 private:
  absl::Status status_;
};

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

// Returns what `function` does. A StatusError that it throws gets "WHAT NUMBER: " before its
// message, such as "rank 1: ": the texts of several ranks stand in one log.
template <typename Function>
auto SayingWhere(absl::string_view what, int64_t number, const Function& function) {
  try {
    return function();
  } catch (const StatusError& error) {
    throw StatusError(errors::WithContext(error.status(), absl::StrCat(what, " ", number)));
  }
}

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_STATUS_ERROR_H_
