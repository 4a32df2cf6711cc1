#include "tools/launcher/prefixed_lines.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace optshard {
namespace {

// Of the escape sequence: colours that can be read on light and dark grounds.
constexpr int kTrainerColours[] = {36, 32, 35, 34, 33, 31};
constexpr int kServiceColour = 90;

}  // namespace

std::string LinePrefix(const Role& role, bool coloured) {
  const std::string text = absl::StrCat("[", role.Name(), "]");
  if (!coloured) return absl::StrCat(text, " ");
  const int colour = role.kind == Role::Kind::kTrainer
                         ? kTrainerColours[role.rank % std::size(kTrainerColours)]
                         : kServiceColour;
  return absl::StrCat("\x1b[", colour, "m", text, "\x1b[0m ");
}

PrefixedLines::PrefixedLines(std::string prefix, size_t kept)
    : prefix_(std::move(prefix)), kept_(kept) {}

std::string PrefixedLines::Take(absl::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t room = kLongestLine - unfinished_.size();
    const bool whole = end != absl::string_view::npos && end <= room;
    const absl::string_view part = bytes.substr(0, whole ? end : room);
    unfinished_.append(part.data(), part.size());
    bytes.remove_prefix(part.size() + (whole ? 1 : 0));
    if (whole || unfinished_.size() == kLongestLine) {
      Emit(unfinished_, lines);
      unfinished_.clear();
    }
  }
  return lines;
}

std::string PrefixedLines::Finish() {
  std::string line;
  if (!unfinished_.empty()) Emit(unfinished_, line);
  unfinished_.clear();
  return line;
}

void PrefixedLines::Emit(absl::string_view line, std::string& lines) {
  absl::ConsumeSuffix(&line, "\r");
  absl::StrAppend(&lines, prefix_, line, "\n");
  last_.emplace_back(line);
  if (last_.size() > kept_) last_.pop_front();
}

}  // namespace optshard
