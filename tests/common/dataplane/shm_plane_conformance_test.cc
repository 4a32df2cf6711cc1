// Ranks as threads of one process: they map each other's mailboxes all the same.
#include "common/dataplane/shm/shm_plane.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

class ShmMaker : public PlaneMaker {
 public:
  explicit ShmMaker(ShmPlaneOptions options) : options_(std::move(options)) {
    options_.rendezvous = &rendezvous_;
    options_.deadline = FarDeadline();
  }

  absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) override {
    ShmPlaneOptions options = options_;
    options.rank = rank;
    return CreateShmPlane(options);
  }

 private:
  testing::FakeRendezvous rendezvous_;
  ShmPlaneOptions options_;
};

PlaneKind Shm(const std::string& name, absl::Duration spin) {
  return {name, [=](int world_size) {
            ShmPlaneOptions options;
            options.world_size = world_size;
            options.generation = 7;
            options.spin = spin;
            return std::make_unique<ShmMaker>(options);
          }};
}

const std::vector<PlaneKind>& Kinds() {
  static const auto* const kKinds = new std::vector<PlaneKind>{
      Shm("Spinning", absl::Microseconds(20)), Shm("Sleeping", absl::ZeroDuration())};
  return *kKinds;
}

INSTANTIATE_TEST_SUITE_P(Shm, DataPlaneConformance, CasesOf(Kinds(), 1, 4), CaseName);
INSTANTIATE_TEST_SUITE_P(Shm, DataPlaneWithPeers, CasesOf(Kinds(), 2, 4), CaseName);

}  // namespace
}  // namespace optshard
