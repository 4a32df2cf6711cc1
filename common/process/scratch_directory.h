// A temporary directory that is deleted at the end of a scope.
#ifndef OPTSHARD_COMMON_PROCESS_SCRATCH_DIRECTORY_H_
#define OPTSHARD_COMMON_PROCESS_SCRATCH_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace optshard {

// Only this user can read it. Thread-compatible.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "optshard-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }  // empty where it cannot be made

 private:
  std::filesystem::path path_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PROCESS_SCRATCH_DIRECTORY_H_
