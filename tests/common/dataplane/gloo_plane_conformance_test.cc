// Ranks as threads of one process.
#include "common/dataplane/gloo/gloo_plane.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

class GlooMaker : public PlaneMaker {
 public:
  explicit GlooMaker(GlooPlaneOptions options) : options_(std::move(options)) {
    options_.rendezvous = &rendezvous_;
    options_.deadline = FarDeadline();
  }

  absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) override {
    GlooPlaneOptions options = options_;
    options.rank = rank;
    return CreateGlooPlane(options);
  }

 private:
  testing::FakeRendezvous rendezvous_;
  GlooPlaneOptions options_;
};

PlaneKind Gloo(const std::string& name, const std::string& network, size_t window_bytes) {
  return {name, [=](int world_size) {
            GlooPlaneOptions options;
            options.world_size = world_size;
            options.generation = 7;
            options.network = network;
            options.reduce_window_bytes = window_bytes;
            return std::make_unique<GlooMaker>(options);
          }};
}

// By interface, with memory for all contributions at once; by address, with memory for those of
// one bucket at a time.
const std::vector<PlaneKind>& Kinds() {
  static const auto* const kKinds = new std::vector<PlaneKind>{
      Gloo("Interface", "lo", size_t{64} << 20), Gloo("AddressAndSmallWindow", "127.0.0.1", 1)};
  return *kKinds;
}

INSTANTIATE_TEST_SUITE_P(Gloo, DataPlaneConformance, CasesOf(Kinds(), 1, 4), CaseName);
INSTANTIATE_TEST_SUITE_P(Gloo, DataPlaneWithPeers, CasesOf(Kinds(), 2, 4), CaseName);

}  // namespace
}  // namespace optshard
