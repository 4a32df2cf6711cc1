#include "server/shard/state/replacing.h"

namespace optshard {

absl::string_view RemedyOf(Replacing what) {
  switch (what) {
    case Replacing::kState:
      return "it was replaced only in part; load the state again, on all ranks";
    case Replacing::kAll:
      return "a checkpoint was loaded only in part; load one again, on all ranks";
    case Replacing::kNothing:
      break;
  }
  return "a step has torn it; load a checkpoint, on all ranks";
}

}  // namespace optshard
