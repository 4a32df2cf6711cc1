#include "client/status_error.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

std::string Text(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

}  // namespace

StatusError::StatusError(absl::Status status)
    : std::runtime_error(Text(status)), status_(std::move(status)) {}

}  // namespace optshard
