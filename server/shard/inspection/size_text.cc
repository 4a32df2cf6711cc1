#include "server/shard/inspection/size_text.h"

#include "absl/strings/str_format.h"

namespace optshard {

std::string SizeText(int64_t bytes) {
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  double size = static_cast<double>(bytes) / 1024;
  const char* unit = "KiB";
  for (const char* next : {"MiB", "GiB"}) {
    // 1023.95 and more would print as 1024.0.
    if (size < 1023.95) break;
    size /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", size, unit);
}

}  // namespace optshard
