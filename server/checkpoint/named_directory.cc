#include "server/checkpoint/named_directory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/utf8_prefix.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

constexpr size_t kMostBytes = 4095;  // the system's own limit
constexpr size_t kShownBytes = 200;

absl::Status Refused(absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the directory \"", EscapeName(Utf8Prefix(path, kShownBytes)), "\" ", why));
}

}  // namespace

absl::Status CheckNamedDirectory(absl::string_view path) {
  if (path.size() > kMostBytes) {
    return Refused(path, absl::StrCat("has ", path.size(), " bytes, at most ", kMostBytes));
  }
  if (HasControlCharacters(path)) return Refused(path, "has control characters");
  if (path.empty() || path.front() != '/') {
    return Refused(path, "is not an absolute path, such as /checkpoints/run-7");
  }
  for (const absl::string_view component : absl::StrSplit(path, '/')) {
    if (component == "..") return Refused(path, "has a component \"..\": write where it leads to");
  }
  return absl::OkStatus();
}

}  // namespace optshard
