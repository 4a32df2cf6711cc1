#include "server/update/cpu/numa_nodes.h"

#include <filesystem>
#include <map>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/link/kernel_file.h"

namespace optshard {

absl::StatusOr<cpu_set_t> ParseCpuList(absl::string_view text) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const absl::string_view range :
       absl::StrSplit(absl::StripAsciiWhitespace(text), ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= CPU_SETSIZE) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is no list of CPUs, such as 0-3,8"));
    }
    for (int cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &cpus);
  }
  return cpus;
}

const NumaNodes& NumaNodes::OfThisMachine() {
  static const auto* const kNodes = new NumaNodes(Under("/sys/devices/system/node"));
  return *kNodes;
}

NumaNodes NumaNodes::Under(const std::string& root) {
  std::map<int, cpu_set_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
    const std::string name = entry.path().filename();
    int number = 0;
    if (name.rfind("node", 0) != 0 || !absl::SimpleAtoi(name.substr(4), &number)) continue;
    const absl::StatusOr<cpu_set_t> cpus =
        ParseCpuList(ReadKernelFile(entry.path() / "cpulist").value_or(""));
    // A node may have memory only.
    if (cpus.ok() && CPU_COUNT(&*cpus) > 0) found[number] = *cpus;
  }
  NumaNodes nodes;
  for (const auto& [number, cpus] : found) nodes.nodes_.push_back(cpus);
  if (nodes.nodes_.empty()) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
    nodes.nodes_.push_back(all);
  }
  return nodes;
}

int NumaNodes::Here() const {
  const int cpu = sched_getcpu();
  for (int node = 0; node < count() && cpu >= 0; ++node) {
    if (CPU_ISSET(cpu, &nodes_[node])) return node;
  }
  return 0;
}

cpu_set_t NumaNodes::AllowedNear(int node) const {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return allowed;
  cpu_set_t near;
  CPU_AND(&near, &allowed, &nodes_[node]);
  return CPU_COUNT(&near) > 0 ? near : allowed;
}

void NumaNodes::KeepThisThreadOn(int node) const {
  if (count() == 1) return;
  const cpu_set_t near = AllowedNear(node);
  if (CPU_COUNT(&near) > 0) sched_setaffinity(0, sizeof near, &near);
}

}  // namespace optshard
