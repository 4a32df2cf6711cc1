// Loads the shared object in which Gloo lives.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_LOADER_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_LOADER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/dataplane/gloo/gloo_wire.h"

namespace optshard {

// Whether the object uses its own Gloo also where LibTorch's is in the same process. False under
// asan and tsan, which refuse RTLD_DEEPBIND.
bool GlooIsIsolated();

// The first call loads the object, which is never unloaded. FAILED_PRECONDITION with the loader's
// message where it cannot be loaded, or where it is not isolated and LibTorch's Gloo is in the
// process. INVALID_ARGUMENT where there is no such network. Thread-safe.
absl::StatusOr<std::unique_ptr<GlooWire>> MakeGlooWire(const GlooWire::Options& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_LOADER_H_
