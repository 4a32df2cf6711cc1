// A file system in memory that does what real ones may do: it forgets what was not synced, tears
// writes, runs out of space and fails.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_FILE_SYSTEM_H_
#define OPTSHARD_TESTS_TESTING_FAKE_FILE_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/checkpoint/file_system.h"

namespace optshard::testing {

// Has no links. Operations are all calls of files and directories but path(); they are numbered
// from 0 on. Thread-safe, but for the calls of a test itself.
class FakeFileSystem final : public FileSystem {
 public:
  FakeFileSystem();
  ~FakeFileSystem() override;

  // "/" is there from the beginning.
  absl::StatusOr<std::unique_ptr<Directory>> OpenDirectory(const std::string& path) override;

  // --- Faults, for operations that come later.

  // Only this operation fails. A write has then written half; a sync that failed has lost what it
  // was to keep, and a later one does not notice.
  void FailOperation(int64_t number, absl::Status error);
  // Likewise, but it has done all that it was to do.
  void FailDoneOperation(int64_t number, absl::Status error);
  // The power fails during this operation. From it on, all fail with UNAVAILABLE until Restart.
  void CrashAtOperation(int64_t number);
  // Of the files together.
  void SetCapacity(int64_t bytes);

  // Runs before each operation, in its thread. It may use the file system.
  void BeforeOperations(std::function<void()> hook);
  // What changes from now on has this time. It stands still; before the first call it is 1970.
  void SetTime(absl::Time now);

  int64_t operations() const;
  int most_open_files() const;  // at once, so far
  bool crashed() const;

  // What a crash leaves of that which was not synced.
  enum class Unsynced { kLost, kKept, kByChance };

  // The power comes back. What was open before stays unusable. By chance: each write that was not
  // synced is there, is not, or its beginning up to any byte is; each name likewise, in any
  // combination. Clears all faults.
  void Restart(Unsynced unsynced, uint64_t seed = 0);

  // Changes a file behind everybody's back, as a failing device does. The file must be there.
  void Edit(const std::string& path, const std::function<void(std::string&)>& edit);

 private:
  class Disk;
  class OpenFileHandle;
  class OpenDirectoryHandle;

  const std::shared_ptr<Disk> disk_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_FILE_SYSTEM_H_
