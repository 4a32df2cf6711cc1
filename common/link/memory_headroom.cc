#include "common/link/memory_headroom.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/link/kernel_file.h"

namespace optshard {
namespace {

// v1 writes "no limit" as the largest multiple of a page; no machine has as much as this.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 60;

enum class Version { kV1, kV2 };

// One line of /proc/self/mountinfo.
struct Mount {
  std::string root;   // the cgroup that is seen at `point`
  std::string point;  // where it is mounted
};

void LowerTo(absl::optional<int64_t>& least, absl::optional<int64_t> value) {
  if (value.has_value()) least = std::min(*value, least.value_or(*value));
}

std::string Read(const std::string& path) { return ReadKernelFile(path).value_or(""); }

absl::optional<int64_t> Number(absl::string_view text) {
  uint64_t number;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return absl::nullopt;
  return static_cast<int64_t>(
      std::min(number, static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
}

absl::optional<int64_t> NumberIn(const std::string& path) { return Number(Read(path)); }

// The number after `key` of lines such as "inactive_file 4096" or "MemAvailable:  100 kB".
absl::optional<int64_t> Field(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == key) return Number(words[1]);
  }
  return absl::nullopt;
}

// "\040" for a blank, and so on.
std::string Unescaped(absl::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      result.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                         (text[i + 3] - '0')));
      i += 3;
    } else {
      result.push_back(text[i]);
    }
  }
  return result;
}

bool Lists(absl::string_view comma_separated, absl::string_view item) {
  const std::vector<absl::string_view> items = absl::StrSplit(comma_separated, ',');
  return std::find(items.begin(), items.end(), item) != items.end();
}

// The path of this process's cgroup, as /proc/self/cgroup has it.
absl::optional<std::string> OwnPath(absl::string_view cgroups, Version version) {
  for (absl::string_view line : absl::StrSplit(cgroups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (version == Version::kV2 ? parts[0] == "0" && parts[1].empty() : Lists(parts[1], "memory")) {
      return std::string(parts[2]);
    }
  }
  return absl::nullopt;
}

std::vector<Mount> Mounts(absl::string_view mountinfo, Version version) {
  std::vector<Mount> mounts;
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(absl::string_view(" - "), 1));
    const std::vector<absl::string_view> where = absl::StrSplit(halves.first, ' ');
    const std::vector<absl::string_view> kind = absl::StrSplit(halves.second, ' ');
    if (where.size() < 6 || kind.size() < 3) continue;
    if (version == Version::kV2 ? kind[0] == "cgroup2"
                                : kind[0] == "cgroup" && Lists(kind[2], "memory")) {
      mounts.push_back({Unescaped(where[3]), Unescaped(where[4])});
    }
  }
  return mounts;
}

// `path` below `root`, without the slash it begins with; nothing where it is not below.
absl::optional<std::string> Below(absl::string_view path, absl::string_view root) {
  root = absl::StripSuffix(root, "/");
  if (!absl::ConsumePrefix(&path, root)) return absl::nullopt;
  if (!path.empty() && !absl::ConsumePrefix(&path, "/")) return absl::nullopt;
  // A cgroup namespace shows what lies outside of it as "/../..".
  if (absl::StrContains(absl::StrCat("/", path, "/"), "/../")) return absl::nullopt;
  return std::string(path);
}

// What the limit of one cgroup leaves.
absl::optional<int64_t> Left(const std::string& folder, Version version) {
  const bool v2 = version == Version::kV2;
  const std::string stat = Read(folder + "/memory.stat");
  absl::optional<int64_t> limit =
      NumberIn(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));  // v2: or "max"
  if (!v2) LowerTo(limit, Field(stat, "hierarchical_memory_limit"));
  const absl::optional<int64_t> used =
      NumberIn(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit.has_value() || *limit >= kUnlimitedBytes || !used.has_value()) return absl::nullopt;
  const int64_t cache = Field(stat, v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  return std::max(*limit - std::max(*used - cache, int64_t{0}), int64_t{0});
}

// What the limits of this process's cgroup, and of all around it that can be seen, leave.
absl::optional<int64_t> LeftByCgroups(const std::string& root, Version version) {
  const absl::optional<std::string> path = OwnPath(Read(root + "/proc/self/cgroup"), version);
  if (!path.has_value()) return absl::nullopt;
  const std::vector<Mount> mounts = Mounts(Read(root + "/proc/self/mountinfo"), version);
  if (mounts.empty()) return absl::nullopt;

  // Where no mount shows this cgroup, a container shows its own at the first one.
  std::string top = mounts.front().point;
  std::string below;
  for (const Mount& mount : mounts) {
    if (const absl::optional<std::string> found = Below(*path, mount.root)) {
      top = mount.point;
      below = *found;
      break;
    }
  }

  std::string folder = root + top;
  absl::optional<int64_t> least = Left(folder, version);
  for (absl::string_view name : absl::StrSplit(below, '/', absl::SkipEmpty())) {
    absl::StrAppend(&folder, "/", name);
    LowerTo(least, Left(folder, version));
  }
  return least;
}

}  // namespace

absl::optional<int64_t> MemoryHeadroomUnder(const std::string& root) {
  absl::optional<int64_t> least = LeftByCgroups(root, Version::kV2);
  LowerTo(least, LeftByCgroups(root, Version::kV1));
  const absl::optional<int64_t> available_kib =
      Field(Read(root + "/proc/meminfo"), "MemAvailable:");
  if (available_kib.has_value()) LowerTo(least, *available_kib * 1024);
  return least;
}

absl::optional<int64_t> MemoryHeadroom() { return MemoryHeadroomUnder(""); }

}  // namespace optshard
