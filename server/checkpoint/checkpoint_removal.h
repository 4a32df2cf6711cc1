// How a checkpoint goes, while others may commit, list and remove.
//
// Whoever removes first puts a mark of its own into the directory, then looks whether a manifest
// has come since the decision, and takes its mark away only after the last part. Whoever commits
// gives the manifest its name first, then looks for marks, and after that for the parts (commit.h).
// So: where the remover sees no manifest, the committer's look comes after the mark was there. It
// sees the mark, or, where that is gone again, no parts, and takes the manifest back. Where the
// remover sees a manifest that is new, it removes nothing. Nobody takes away the mark of one that
// may still be at work; so with several removers each one's own mark makes the argument.
//
// A remover that dies between mark and look may leave its mark on what was committed just before.
// That counts as not committed until somebody removes it for that: who then finds the manifest, and
// takes the mark of the dead one away instead.
#ifndef OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_REMOVAL_H_
#define OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_REMOVAL_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// After this time without a change its writer, or remover, is taken for dead.
constexpr absl::Duration kTakenForDead = absl::Hours(1);

// Whether a file's name is that of a mark: "removing.", and 32 hexadecimal digits. A directory with
// one is no committed checkpoint.
bool IsRemovalMark(absl::string_view name);

enum class Removal {
  kRemoved,  // by this call, or by another process meanwhile
  kKept,     // it was listed as not committed, and has a manifest
};

// Removes what was decided upon: first it ceases to be a checkpoint, then its files go. An
// interruption leaves one that is not committed. INVALID_ARGUMENT where it has not the name of a
// checkpoint; errors of files, after which a later call may go on. Thread-safe, also against other
// processes.
absl::StatusOr<Removal> RemoveCheckpoint(Directory& root, const CheckpointEntry& decided);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_REMOVAL_H_
