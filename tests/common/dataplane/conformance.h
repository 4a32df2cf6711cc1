// The conformance suite of data planes. A plane's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, DataPlaneConformance, CasesOf({kind}, 1, 4), CaseName);
//   INSTANTIATE_TEST_SUITE_P(Mine, DataPlaneWithPeers, CasesOf({kind}, 2, 4), CaseName);
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_CONFORMANCE_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_CONFORMANCE_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/dataplane/plane_group.h"

namespace optshard {

struct ConformanceCase {
  PlaneKind kind;
  int world_size = 1;

  friend void PrintTo(const ConformanceCase& value, std::ostream* out) {
    *out << value.kind.name << ", world size " << value.world_size;
  }
};

class DataPlaneConformance : public ::testing::TestWithParam<ConformanceCase> {
 protected:
  int world_size() const { return GetParam().world_size; }

  // Runs `body` on every rank.
  void Run(const std::function<void(DataPlane& plane)>& body) const;
};

// What only peers can do to each other: die, hang, differ.
class DataPlaneWithPeers : public DataPlaneConformance {};

// Every kind at every world size from `smallest` to `largest`.
inline auto CasesOf(const std::vector<PlaneKind>& kinds, int smallest, int largest) {
  std::vector<ConformanceCase> cases;
  for (const PlaneKind& kind : kinds) {
    for (int size = smallest; size <= largest; ++size) cases.push_back({kind, size});
  }
  return ::testing::ValuesIn(cases);
}

inline std::string CaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return info.param.kind.name + "World" + std::to_string(info.param.world_size);
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_CONFORMANCE_H_
