// State dicts in the archives of torch::optim: what torch::save writes of an optimizer and
// torch::load reads.
#ifndef OPTSHARD_CLIENT_STATE_ARCHIVE_H_
#define OPTSHARD_CLIENT_STATE_ARCHIVE_H_

#include "absl/status/statusor.h"
#include "client/state_dict.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace optshard {

// In the format of torch::optim since LibTorch 1.5, with the same names as the dict: an archive of
// the rule "adam", "adamw", "adagrad", "rmsprop" or "sgd" can be loaded into torch::optim's
// optimizer of that name. What that does not know (maximize, master) it leaves alone.
void WriteArchive(const StateDict& dict, torch::serialize::OutputArchive& archive);

// INVALID_ARGUMENT where it is no such archive, or where a part of one is missing. Throws nothing.
absl::StatusOr<StateDict> ReadArchive(torch::serialize::InputArchive& archive);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_STATE_ARCHIVE_H_
