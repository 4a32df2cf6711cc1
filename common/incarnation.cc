#include "common/incarnation.h"

#include "absl/strings/str_cat.h"

namespace optshard {

std::string IncarnationText(Incarnation incarnation) {
  const Epoch epoch = EpochOf(incarnation);
  if (epoch == 0) return absl::StrCat(incarnation);
  return absl::StrCat(epoch, ".", CountOf(incarnation));
}

}  // namespace optshard
