// Flat memory that a trainer's tensors can be views of, and what speaks against moving them there.
#ifndef OPTSHARD_CLIENT_REPLICA_FLAT_MEMORY_H_
#define OPTSHARD_CLIENT_REPLICA_FLAT_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/replica/parameter_list.h"
#include "common/buffer.h"
#include "common/dataplane/peer_replicas.h"
#include "common/parameter_space.h"

namespace optshard {

// By region of the MemoryLayout.
struct FlatMemory {
  std::vector<ReplicaRegion> regions;
  std::shared_ptr<const void> owner;  // keeps it mapped as long as a tensor lies in it
  // It holds values already, which win over the trainer's.
  bool has_values = false;

  // Of this process alone, for what is in the list, on its device, all zeros. RESOURCE_EXHAUSTED.
  static absl::StatusOr<FlatMemory> Private(const ParameterList& list);
};

// A tensor of `array`'s type over it, with a storage and a version counter of its own. It keeps
// `owner` alive.
at::Tensor FlatTensor(Buffer array, at::IntArrayRef sizes, std::shared_ptr<const void> owner,
                      c10::Device device = c10::kCPU);

// A use of a tensor's memory by this library. Where that is FlatTensor's, it is not taken for
// another tensor's (WhatFlatMemoryBreaks). Any thread may destroy it.
class OwnUse {
 public:
  // `tensors`: how many tensors of the memory end with this.
  explicit OwnUse(const c10::Storage& storage, int tensors = 0);
  ~OwnUse();
  OwnUse(OwnUse&& other) noexcept;
  OwnUse& operator=(OwnUse&& other) noexcept;

 private:
  c10::Storage storage_;
  int uses_;
};

// What moving the values into flat memory would break for the trainer, for people; empty where it
// breaks nothing. Names the first such parameter:
//   - it shares its storage with another tensor, which would keep the old values from then on;
//   - it lies in memory that LibTorch did not allocate (from_blob, a mapped file), which somebody
//     else may read or write. The flat memory of another optimizer is all right, also while that
//     one lives;
//   - it is not contiguous (channels_last, say): the view would be, and kernels chosen for the
//     layout would no longer be used.
std::string WhatFlatMemoryBreaks(const ParameterList& list);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_FLAT_MEMORY_H_
