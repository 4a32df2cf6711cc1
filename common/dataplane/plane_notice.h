// What a rank is told of the way in which its steps travel.
#ifndef OPTSHARD_COMMON_DATAPLANE_PLANE_NOTICE_H_
#define OPTSHARD_COMMON_DATAPLANE_PLANE_NOTICE_H_

#include <string>

#include "common/log.h"

namespace optshard {

struct PlaneNotice {
  std::string text;  // for people: the way, what keeps the job from a faster one, and what to do
  // A faster way is possible, and this rank was not told to do without it.
  bool is_warning = false;
};

// As a warning, or else at the level "info". A notice without text is not logged.
void LogNotice(const PlaneNotice& notice, const LogContext& who);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_PLANE_NOTICE_H_
