// The manifest as text. It is one JSON object, which other programs read, too:
//
//   {"checksum": "xxh3:0123456789abcdef", "checkpoint": {
//   "format_version": 1,
//   ...
//   }}
//
// The first line's beginning is the same in every version. The checksum is of all bytes that follow
// `"checkpoint": `. docs/checkpoint_format.md has the fields. All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_MANIFEST_JSON_H_
#define OPTSHARD_SERVER_CHECKPOINT_MANIFEST_JSON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/checkpoint_manifest.h"

namespace optshard {

constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

std::string ToText(const CheckpointManifest& manifest);

// Also validates it. DATA_LOSS where the checksum says that it is damaged; FAILED_PRECONDITION for
// one of a newer format; INVALID_ARGUMENT, with the field's place, where it is no manifest or
// describes what cannot be.
absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text);

// Likewise of a manifest that is not complete yet, for the way to whoever completes it; not
// validated.
absl::StatusOr<CheckpointManifest> ParseDescription(absl::string_view text);

// How often an owner has updated a parameter, and its scalar slots.
struct ParameterCount {
  int parameter = 0;
  StepNumber steps = 0;
  ScalarValues scalars;
};

// What an owner that has written its file tells whoever commits.
struct OwnerPart {
  CheckpointFile file;
  std::vector<ParameterCount> counts;  // of the parameters of which it owns elements
};

// For the way from one to the other. Errors as ParseManifest's; only what is in the text is
// checked, the rest by CheckpointManifest::Validate.
std::string ToText(const OwnerPart& part);
absl::StatusOr<OwnerPart> ParseOwnerPart(absl::string_view text);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_MANIFEST_JSON_H_
