// A file that is there whole or not at all.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ATOMIC_FILE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ATOMIC_FILE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// Writes a file of another name, syncs it, and gives it this name: until then the one that has it
// stays, also where writing fails. A process that dies meanwhile leaves a file that ends in
// ".unfinished". Errors of `write` and of files; where the last sync fails, which the error says,
// the file is there, and may be the old one after a power failure. Thread-safe, also against other
// processes: the last one wins.
absl::Status WriteFileAtomically(Directory& directory, absl::string_view name,
                                 const std::function<absl::Status(File& file)>& write);

// "dir/name" apart; the directory of a name alone is ".".
struct SplitPath {
  std::string directory;
  std::string name;
};
SplitPath Split(absl::string_view path);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ATOMIC_FILE_H_
