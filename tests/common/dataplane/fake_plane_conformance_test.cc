#include "tests/common/dataplane/conformance.h"
#include "tests/testing/fake_plane.h"

namespace optshard {
namespace {

class FakeMaker : public PlaneMaker {
 public:
  explicit FakeMaker(testing::FakeHub::Options options) : hub_(std::move(options)) {}
  absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) override {
    return hub_.MakePlane(rank);
  }

 private:
  testing::FakeHub hub_;
};

PlaneKind Fake(const std::string& name, testing::FakeHub::Mode mode) {
  return {name, [mode](int world_size) {
            testing::FakeHub::Options options;
            options.world_size = world_size;
            options.mode = mode;
            return std::make_unique<FakeMaker>(options);
          }};
}

const std::vector<PlaneKind>& Kinds() {
  static const auto* const kKinds =
      new std::vector<PlaneKind>{Fake("Immediate", testing::FakeHub::Mode::kImmediate),
                                 Fake("Delayed", testing::FakeHub::Mode::kDelayed)};
  return *kKinds;
}

INSTANTIATE_TEST_SUITE_P(Fake, DataPlaneConformance, CasesOf(Kinds(), 1, 4), CaseName);
INSTANTIATE_TEST_SUITE_P(Fake, DataPlaneWithPeers, CasesOf(Kinds(), 2, 4), CaseName);

}  // namespace
}  // namespace optshard
