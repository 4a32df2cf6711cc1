// Text of a process, cut into lines that say who wrote them.
#ifndef OPTSHARD_TOOLS_LAUNCHER_PREFIXED_LINES_H_
#define OPTSHARD_TOOLS_LAUNCHER_PREFIXED_LINES_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/launcher/role.h"

namespace optshard {

// "[rank 3] ", in a colour of the role's own where `coloured`.
std::string LinePrefix(const Role& role, bool coloured);

// Of one stream. Thread-compatible.
class PrefixedLines {
 public:
  // A line that is longer is cut into several.
  static constexpr size_t kLongestLine = 64 << 10;

  // The last `kept` lines can be asked for.
  explicit PrefixedLines(std::string prefix, size_t kept = 10);

  // The lines that these bytes complete, with prefix and newline; what is left waits for its end.
  std::string Take(absl::string_view bytes);
  // The stream is over: what is left, as a line. Empty where nothing is.
  std::string Finish();

  // The last lines, without prefix and newline.
  std::vector<std::string> last() const { return {last_.begin(), last_.end()}; }

 private:
  void Emit(absl::string_view line, std::string& lines);

  const std::string prefix_;
  const size_t kept_;
  std::string unfinished_;
  std::deque<std::string> last_;
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_PREFIXED_LINES_H_
