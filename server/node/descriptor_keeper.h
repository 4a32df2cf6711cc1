// Holds descriptors of memory so that it outlives the process that made it.
#ifndef OPTSHARD_SERVER_NODE_DESCRIPTOR_KEEPER_H_
#define OPTSHARD_SERVER_NODE_DESCRIPTOR_KEEPER_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Descriptors that belong together: kept, replaced and forgotten as a whole.
struct KeptUnit {
  std::string name;
  std::vector<UniqueFd> descriptors;
};

// Thread-safe.
class DescriptorKeeper {
 public:
  virtual ~DescriptorKeeper() = default;

  // Returns once duplicates are held under the name, in place of what was. UNAVAILABLE where nobody
  // keeps anything any more, RESOURCE_EXHAUSTED where no more can be held, DEADLINE_EXCEEDED.
  virtual absl::Status Keep(absl::string_view name, absl::Span<const int> descriptors) = 0;
  // OK also where nothing is held under the name.
  virtual absl::Status Forget(absl::string_view name) = 0;
  // The process that holds them.
  virtual pid_t pid() const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_DESCRIPTOR_KEEPER_H_
