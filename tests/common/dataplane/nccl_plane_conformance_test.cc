// The NCCL plane over fake devices and the fake NCCL, beside fake planes of the host.
#include "gmock/gmock.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/common/dataplane/device_memory_plane.h"
#include "tests/common/dataplane/nccl_group.h"

namespace optshard {
namespace {

struct Variant {
  testing::FakeNccl::Options nccl;
  bool gathers_on_device = false;
  size_t reduce_window_bytes = size_t{1} << 20;
};

class NcclMaker : public PlaneMaker {
 public:
  NcclMaker(int world_size, const Variant& variant)
      : variant_(variant), group_(world_size, variant.nccl) {}
  ~NcclMaker() override { EXPECT_THAT(group_.nccl().Misuses(), ::testing::IsEmpty()); }

  absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) override {
    NcclPlaneOptions options = group_.OptionsOf(rank);
    options.reduce_window_bytes = variant_.reduce_window_bytes;
    absl::StatusOr<std::unique_ptr<DataPlane>> plane = group_.Make(options);
    if (!plane.ok()) return plane;
    return OnDeviceMemory(*std::move(plane), group_.devices(), *options.device,
                          variant_.gathers_on_device);
  }

 private:
  const Variant variant_;
  NcclGroup group_;
};

PlaneKind Nccl(const std::string& name, const Variant& variant) {
  return {name,
          [variant](int world_size) { return std::make_unique<NcclMaker>(world_size, variant); }};
}

// Votes over the host plane, with kernels that wait in silence for a lost rank. All on the device,
// where NCCL takes its time to launch and tells of losses, and where buckets are reduced in pieces.
const std::vector<PlaneKind>& Kinds() {
  static const auto* const kKinds = [] {
    Variant votes_on_host;
    Variant all_on_device;
    all_on_device.nccl.busy_polls = 3;
    all_on_device.nccl.losses_are_errors = true;
    all_on_device.gathers_on_device = true;
    all_on_device.reduce_window_bytes = 12 << 10;
    return new std::vector<PlaneKind>{Nccl("VotesOnHost", votes_on_host),
                                      Nccl("AllOnDevice", all_on_device)};
  }();
  return *kKinds;
}

INSTANTIATE_TEST_SUITE_P(Nccl, DataPlaneConformance, CasesOf(Kinds(), 1, 4), CaseName);
INSTANTIATE_TEST_SUITE_P(Nccl, DataPlaneWithPeers, CasesOf(Kinds(), 2, 4), CaseName);

}  // namespace
}  // namespace optshard
