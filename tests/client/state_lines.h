// What a rank has of a job, as lines that can be compared.
#ifndef OPTSHARD_TESTS_CLIENT_STATE_LINES_H_
#define OPTSHARD_TESTS_CLIENT_STATE_LINES_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/tensors.h"

namespace optshard::testing {

// The consolidated state, and these parameters' bytes. All ranks call it.
inline std::vector<std::string> StateLines(ShardedOptimizer& optimizer,
                                           const std::vector<at::Tensor>& parameters) {
  optimizer.consolidate_state_dict(-1);
  std::vector<std::string> lines = DigestLines(optimizer.state_dict());
  for (const at::Tensor& each : parameters) lines.push_back(BytesOf(each));
  return lines;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_STATE_LINES_H_
