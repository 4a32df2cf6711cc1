#include "common/dataplane/gloo/gloo_loader.h"

#include "common/isolated_object.h"

extern "C" const char optshard_gloo_begin[];
extern "C" const char optshard_gloo_end[];

namespace optshard {
namespace {

absl::StatusOr<MakeGlooWireFunction> Load() {
  const absl::StatusOr<void*> entry = LoadIsolated({
      "optshard_gloo",
      {optshard_gloo_begin, static_cast<size_t>(optshard_gloo_end - optshard_gloo_begin)},
      "optshard_make_gloo_wire",
      "the Gloo data plane",
      "Gloo",
      "libgloo0",
      // gloo::Context::getDevice(): any of those that LibTorch's Gloo and Debian's have in common.
      "_ZN4gloo7Context9getDeviceEv",
  });
  if (!entry.ok()) return entry.status();
  return reinterpret_cast<MakeGlooWireFunction>(*entry);
}

}  // namespace

bool GlooIsIsolated() { return ObjectsAreIsolated(); }

absl::StatusOr<std::unique_ptr<GlooWire>> MakeGlooWire(const GlooWire::Options& options) {
  static const auto* const loaded = new absl::StatusOr<MakeGlooWireFunction>(Load());
  if (!loaded->ok()) return loaded->status();
  std::unique_ptr<GlooWire> wire;
  absl::Status status;
  (**loaded)(options, &wire, &status);
  if (!status.ok()) return status;
  return wire;
}

}  // namespace optshard
