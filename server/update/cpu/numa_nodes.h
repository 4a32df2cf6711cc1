// The machine's memory nodes, and keeping a thread near one of them.
#ifndef OPTSHARD_SERVER_UPDATE_CPU_NUMA_NODES_H_
#define OPTSHARD_SERVER_UPDATE_CPU_NUMA_NODES_H_

#include <sched.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Thread-compatible; immutable.
class NumaNodes {
 public:
  // Of this machine; one node of all CPUs where the kernel does not say.
  static const NumaNodes& OfThisMachine();
  // As the kernel shows them under `root`: nodeN/cpulist.
  static NumaNodes Under(const std::string& root);

  int count() const { return static_cast<int>(nodes_.size()); }
  // The node on whose CPUs the calling thread runs at the moment; the first one if that is not
  // known.
  int Here() const;

  // Those of the node's CPUs on which the calling thread may run; if there are none, all on which
  // it may. An empty set where the kernel does not say.
  cpu_set_t AllowedNear(int node) const;
  // Keeps the calling thread on AllowedNear(node); memory that it touches first is then the node's.
  // Nothing where there is but one node.
  void KeepThisThreadOn(int node) const;

 private:
  std::vector<cpu_set_t> nodes_;
};

// The kernel's way to write sets of CPUs: "0-3,8". INVALID_ARGUMENT.
absl::StatusOr<cpu_set_t> ParseCpuList(absl::string_view text);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CPU_NUMA_NODES_H_
