// Which checkpoint an optimizer has loaded.
#ifndef OPTSHARD_CLIENT_LOADED_CHECKPOINT_H_
#define OPTSHARD_CLIENT_LOADED_CHECKPOINT_H_

#include <string>

#include "common/ids.h"

namespace optshard {

// Thread-compatible value type.
struct LoadedCheckpoint {
  std::string name;  // its directory's: "step-000000001000"
  StepNumber step = 0;
  int world_size = 0;  // of the job that saved it
  // Newer ones that cannot be loaded, each with its problem, such as file, tensor and bytes. Empty:
  // none, or a name was given. For people.
  std::string passed_over;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_LOADED_CHECKPOINT_H_
