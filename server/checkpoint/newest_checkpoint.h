// Which checkpoint a job goes on from.
#ifndef OPTSHARD_SERVER_CHECKPOINT_NEWEST_CHECKPOINT_H_
#define OPTSHARD_SERVER_CHECKPOINT_NEWEST_CHECKPOINT_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

struct NewestCheckpoint {
  absl::optional<CheckpointEntry> entry;  // committed; nothing where there is none
  // Of damaged or unreadable ones of a later step, each with its problem; of any step where there
  // is no committed one, and where it was known to be damaged. Empty: none. For people.
  std::string passed_over;
  // Whose committed ones there are besides, such as 'job "a", optimizer "b"'; empty: nobody's.
  std::string others;
};

// The committed checkpoint of the job and optimizer that was saved last, but for those that are
// known to be damaged: whoever has read them says by name how, since a list looks at sizes alone.
// Errors of ListCheckpoints. Thread-safe.
absl::StatusOr<NewestCheckpoint> FindNewestCheckpoint(
    Directory& root, absl::string_view job, absl::string_view optimizer,
    const std::map<std::string, std::string>& known_damage = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_NEWEST_CHECKPOINT_H_
