// State dicts as .safetensors files. The tensor state[5]["exp_avg"] is "state.5.exp_avg". The
// metadata, which the format has as texts, are
//
//   "format"                "pt"
//   "optshard_state_dict"   "1"
//   "param_groups"          the list as JSON: [{"betas": {"tuple": [0.9, 0.999]}, "lr": 0.001,
//                           "params": [0, 1]}]
//   "state"                 where there are any, the values of the state that are no tensors, as
//                           JSON: {"5": {"eta": 0.25}}
//
// with values as ValueJson has them (value_json.h). All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_SAFETENSORS_STATE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_SAFETENSORS_STATE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

struct SafetensorsState {
  std::vector<SafetensorsTensor> tensors;  // those of the document, in its order
  std::map<std::string, std::string> metadata;
};

// INVALID_ARGUMENT, naming the place, for a document that is no state dict by numbers with text
// names of slots, or has a tensor elsewhere than there, or one in two places.
absl::StatusOr<SafetensorsState> ToSafetensors(const FileDocument& document);

// A file without "optshard_state_dict" is a dict of its tensors by name. INVALID_ARGUMENT for
// metadata that are not as above, with the key.
absl::StatusOr<FileDocument> FromSafetensors(const SafetensorsHeader& header);

// Writes a file; the source is asked for tensors by their place in the layout, in that order. The
// file is new. Errors of the source, and of files.
absl::Status WriteLaidOut(const SafetensorsLayout& layout, const TensorBytes& source, File& file,
                          const FileProgress& progress = {});

// Writes a file; the source is asked for tensors by their place in `tensors`, in the order of the
// file. The file is new. Errors of LayOutSafetensors, of the source, and of files.
absl::Status WriteSafetensors(std::vector<SafetensorsTensor> tensors,
                              std::map<std::string, std::string> metadata,
                              const TensorBytes& source, File& file,
                              const FileProgress& progress = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_SAFETENSORS_STATE_H_
