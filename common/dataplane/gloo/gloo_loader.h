// Loads the shared object in which Gloo lives.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_LOADER_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_LOADER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/dataplane/gloo/gloo_wire.h"

namespace optshard {

// Whether the object keeps to its own Gloo where LibTorch's is in the process. False under asan and
// tsan, which refuse RTLD_DEEPBIND.
bool GlooIsIsolated();

// Loads the object at the first call; it stays. FAILED_PRECONDITION, with the loader's words, where
// it cannot be loaded, or where it is not isolated and would meet LibTorch's Gloo; INVALID_ARGUMENT
// where there is no such network. Thread-safe.
absl::StatusOr<std::unique_ptr<GlooWire>> MakeGlooWire(const GlooWire::Options& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_LOADER_H_
