#include "server/checkpoint/state_file/atomic_file.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/request_id.h"

namespace optshard {

absl::Status WriteFileAtomically(Directory& directory, absl::string_view name,
                                 const std::function<absl::Status(File& file)>& write) {
  const std::string unfinished = absl::StrCat(name, ".", NewRequestId(), ".unfinished");
  absl::Status written;
  {
    const auto file = directory.CreateFile(unfinished);
    if (!file.ok()) return file.status();
    written = write(**file);
    if (written.ok()) written = (*file)->Sync();
  }
  if (written.ok()) written = directory.Rename(unfinished, name);
  if (!written.ok()) {
    directory.Remove(unfinished).IgnoreError();
    return written;
  }
  return errors::WithContext(directory.Sync(),
                             "the file is complete, but a power failure may undo that");
}

SplitPath Split(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return {".", std::string(path)};
  return {std::string(path.substr(0, slash == 0 ? 1 : slash)), std::string(path.substr(slash + 1))};
}

}  // namespace optshard
