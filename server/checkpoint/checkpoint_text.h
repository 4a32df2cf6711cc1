// Checkpoints as people read them. All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_TEXT_H_
#define OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_manifest.h"

namespace optshard {

absl::string_view NameOf(CheckpointState state);  // "committed", "not committed", ...

std::string TimeText(absl::Time time);  // "2026-11-23T07:36:21Z"

// A line for each, after one with titles.
std::string ListText(absl::Span<const CheckpointEntry> entries);

// What is in it: first a summary, then a line for each parameter, below its group.
std::string ShowText(absl::string_view name, const CheckpointManifest& manifest);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_TEXT_H_
