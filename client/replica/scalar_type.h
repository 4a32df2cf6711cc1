// LibTorch's name of an element type and ours.
#ifndef OPTSHARD_CLIENT_REPLICA_SCALAR_TYPE_H_
#define OPTSHARD_CLIENT_REPLICA_SCALAR_TYPE_H_

#include <c10/core/ScalarType.h>

#include "absl/types/optional.h"
#include "common/dtype.h"

namespace optshard {

// Pure functions. None: parameters cannot be of that type.
absl::optional<DType> DTypeOf(c10::ScalarType type);

c10::ScalarType ScalarTypeOf(DType dtype);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_SCALAR_TYPE_H_
