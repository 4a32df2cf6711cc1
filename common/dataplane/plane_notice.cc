#include "common/dataplane/plane_notice.h"

namespace optshard {

void LogNotice(const PlaneNotice& notice, const LogContext& who) {
  if (notice.text.empty()) return;
  Log(notice.is_warning ? LogLevel::kWarning : LogLevel::kInfo, who, "%s", notice.text);
}

}  // namespace optshard
