// Ranks that share a GPU, which NCCL allows to processes that it takes for those of several hosts.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_RANKS_ON_ONE_GPU_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_RANKS_ON_ONE_GPU_H_

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace optshard::testing {

// By each rank's process, before it loads NCCL, which reads these.
inline void TakeForHostOfItsOwn(Rank rank) {
  setenv("NCCL_HOSTID", absl::StrCat("host", rank).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_IB_DISABLE", "1", 1);
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_RANKS_ON_ONE_GPU_H_
