#include "common/process/find_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;

// OK where it can be executed.
absl::Status CheckProgram(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return absl::NotFoundError(absl::StrCat("there is no program ", path));
  }
  if (fs::is_directory(path, ignored)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a folder, expected a program"));
  }
  if (access(path.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " cannot be executed: ", std::strerror(errno), " (chmod +x makes a file executable)"));
}

}  // namespace

absl::StatusOr<std::string> FindOwnProgram(const std::string& name, const std::string& package,
                                           const std::string& given, const std::string& flag) {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const std::vector<fs::path> places =
      given.empty()
          ? std::vector<fs::path>{self.parent_path() / name,
                                  self.parent_path().parent_path() / package / name,
                                  // of a program whose package is as deep
                                  self.parent_path().parent_path().parent_path() / package / name}
          : std::vector<fs::path>{given};
  for (const fs::path& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place.string();
  }
  return absl::NotFoundError(absl::StrCat("no ", name, " to run at ", places.front().string(),
                                          ": build it, or say where it is with --", flag, "=PATH"));
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path) {
  if (absl::StrContains(name, '/')) {
    absl::Status checked = CheckProgram(name);
    if (!checked.ok()) return checked;
    return name;
  }
  absl::Status found = absl::NotFoundError(absl::StrCat(
      "there is no program ", name, " in the folders of PATH",
      access(name.c_str(), F_OK) == 0 ? absl::StrCat("; the one here is ./", name) : ""));
  for (const absl::string_view folder : absl::StrSplit(path, ':')) {
    const std::string place = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    absl::Status checked = CheckProgram(place);
    if (checked.ok()) return place;
    if (!absl::IsNotFound(checked)) found = checked;
  }
  return found;
}

}  // namespace optshard
