#include "client/parameters_checksum.h"

#include <xxhash.h>

#include <memory>

namespace optshard {

uint64_t ParametersChecksum(const std::vector<at::Tensor>& tensors) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    if (values.numel() == 0) continue;
    XXH3_64bits_update(state.get(), values.const_data_ptr(), values.nbytes());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace optshard
