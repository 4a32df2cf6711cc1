// Holds the descriptors of memory, so that the memory outlives the process that allocated it.
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

// Descriptors that belong together. They are kept, replaced and forgotten as a whole.
struct KeptUnit {
  std::string name;
  std::vector<UniqueFd> descriptors;
};

// Thread-safe.
class DescriptorKeeper {
 public:
  virtual ~DescriptorKeeper() = default;

  // Keeps duplicates under the name and replaces what was kept there. Returns once they are kept.
  // UNAVAILABLE where the keeper has ended, RESOURCE_EXHAUSTED where it can hold no more, and
  // DEADLINE_EXCEEDED where it does not answer.
  virtual absl::Status Keep(absl::string_view name, absl::Span<const int> descriptors) = 0;
  // Closes what is kept under the name. OK also where that is nothing. Other errors as Keep.
  virtual absl::Status Forget(absl::string_view name) = 0;
  // The process that holds them.
  virtual pid_t pid() const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_DESCRIPTOR_KEEPER_H_
