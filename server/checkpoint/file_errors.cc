#include "server/checkpoint/file_errors.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr size_t kMaxEntryNameBytes = 255;  // NAME_MAX of Linux's file systems

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case EIO:
      return absl::StatusCode::kDataLoss;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case ELOOP:
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
      return absl::StatusCode::kFailedPrecondition;
    default: {
      const absl::StatusCode code = absl::ErrnoToStatusCode(error);
      // Abseil says so of sockets and devices, too.
      const bool other = code == absl::StatusCode::kNotFound && error != ENOENT;
      return other ? absl::StatusCode::kFailedPrecondition : code;
    }
  }
}

}  // namespace

absl::Status FileError(absl::string_view operation, absl::string_view path, int error) {
  return absl::Status(CodeOf(error), absl::StrCat("cannot ", operation, " ", path, ": ",
                                                  std::strerror(error), " (errno ", error, ")"));
}

absl::Status CheckEntryName(absl::string_view directory, absl::string_view name) {
  absl::string_view wrong;
  if (name.empty()) {
    wrong = "it is empty";
  } else if (name == "." || name == "..") {
    wrong = "it leads out of the directory";
  } else if (absl::StrContains(name, '/')) {
    wrong = "it has a \"/\"";
  } else if (absl::StrContains(name, '\0')) {
    wrong = "it has a NUL byte";
  } else if (name.size() > kMaxEntryNameBytes) {
    wrong = "it has more than 255 bytes";
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxEntryNameBytes)),
                   "\" is not a name within ", directory, ": ", wrong));
}

std::string PathOf(absl::string_view directory, absl::string_view name) {
  return absl::EndsWith(directory, "/") ? absl::StrCat(directory, name)
                                        : absl::StrCat(directory, "/", name);
}

}  // namespace optshard
