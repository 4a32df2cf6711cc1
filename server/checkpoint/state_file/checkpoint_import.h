// Files of other programs as a checkpoint.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_CHECKPOINT_IMPORT_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_CHECKPOINT_IMPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/state_file/file_value.h"
#include "server/checkpoint/state_file/model_source.h"
#include "server/checkpoint/state_file/state_file.h"

namespace optshard {

struct CheckpointImport {
  const StateFile* state = nullptr;    // has the state dict of an optimizer
  std::string key;                     // under which it is there; "": at the top
  const ModelSource* model = nullptr;  // has all parameters
  // The parameters' names over the param groups. Empty: the groups' own "param_names" or, where
  // those are not there, the order of a model that has as many tensors, in a .pt file.
  std::vector<std::string> names;
  std::vector<std::string> rules;  // of each param group, or one for all
  std::string job = "imported";
  std::string optimizer = "default";
  absl::Time saved_at;
};

// Makes a checkpoint of one rank in `root`, at the step up to which the parameter has been updated
// that was most often, and returns its name. Options that choose an implementation of PyTorch's are
// left out; a parameter without state has the rule's initial one. Takes memory for one tensor at a
// time.
//
// INVALID_ARGUMENT, naming the parameter, slot or option: what is no state dict or model, names
// that cannot be told, a parameter that the model lacks, options or slots that are not the rule's,
// shapes that differ. Nothing has been written then. Errors of StateFile::Read, CreateCheckpoint,
// WriteOwnerFile and CommitCheckpoint: they leave no committed checkpoint. Thread-safe.
absl::StatusOr<std::string> ImportCheckpoint(Directory& root, const CheckpointImport& import,
                                             const FileProgress& progress = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_CHECKPOINT_IMPORT_H_
