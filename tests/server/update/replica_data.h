// The replicas of a parameter, for the tests that update them in one pass.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_REPLICA_DATA_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_REPLICA_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/update/update_rule.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {

struct ReplicaShape {
  std::vector<int> group_sizes;  // of the tree's node groups
  int64_t elements = 0;
  int misalignment = 0;   // in elements, from a cache line
  int missing = 0;        // so many replicas, or all, have no gradient
  bool copies = true;     // each replica has a parameter of its own
  bool averaged = false;  // the gradients are averaged already: the owner's is it
};

// Each replica's gradient and parameter, one replica's slots, all between guard elements, and with
// infinities, NaN, denormals and both zeros. The same arguments give the same values.
class ReplicaData {
 public:
  ReplicaData(const RuleCase& rule_case, const ReplicaShape& shape, uint32_t seed);

  // Valid until the next call, while this object stays where it is.
  SpanUpdate Span();

  // What the one pass must equal: AverageOfGroups, Update by the scalar driver, copies.
  void UpdateByParts(const Coefficients& coefficients);

  // As RuleData's, for all replicas.
  std::string DifferenceTo(const ReplicaData& expected) const;

 private:
  bool Missing(size_t replica) const;
  std::vector<float> Average();

  const UpdateRule* rule_;
  ReplicaShape shape_;
  uint32_t seed_;
  size_t owner_;
  std::vector<RuleData> replicas_;
  std::vector<const void*> gradients_;
  std::vector<void*> copies_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_REPLICA_DATA_H_
