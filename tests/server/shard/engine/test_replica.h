// A rank's parameters and gradients for tests, laid out in one of the ways that a trainer may, and
// values for them whose sums depend on the order.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_TEST_REPLICA_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_TEST_REPLICA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"

namespace optshard::testing {

// Magnitudes differ by 2^16, so that float sums depend on their order. The same for the same
// arguments, on every machine.
std::vector<float> OrderSensitiveValues(int64_t elements, uint64_t seed);

// "" where equal to the bit; otherwise index and both values, also in hex. Sizes must be equal.
std::string BitDifference(const std::vector<float>& expected, const std::vector<float>& actual);

enum class Placement {
  kFlatRegions,    // one buffer a region, and the replica vouches for its padding
  kFlatUnvouched,  // the same without saying so
  kScattered,      // each tensor in an allocation of exactly its size
  kReachable,      // as kFlatRegions, and the plane reaches the replicas of all ranks
  kOneCopy,        // as kReachable, with one copy of the parameters for all ranks
};
std::string NameOf(Placement placement);

class TestReplica {
 public:
  // kOneCopy: the parameters are those of `parameters_of`, if it is given.
  TestReplica(const ParameterSpace& space, Placement placement,
              const TestReplica* parameters_of = nullptr);

  // Copies values in; the gradient becomes present.
  void SetParameter(int parameter, const std::vector<float>& values);
  void SetGradient(int parameter, const std::vector<float>& values);
  void DropGradient(int parameter) { tensors_[parameter].gradient = nullptr; }

  std::vector<float> Parameter(int parameter) const;
  std::vector<float> Gradient(int parameter) const;

  const std::vector<ReplicaTensor>& tensors() const { return tensors_; }
  const std::vector<ReplicaRegion>& regions() const { return regions_; }

 private:
  float* Place(int parameter, bool gradient);

  ParameterSpace space_;
  MemoryLayout layout_;
  Placement placement_;
  std::vector<std::unique_ptr<float[]>> memory_;
  std::vector<float*> flat_[2];    // by region: parameters, gradients
  std::vector<float*> gradients_;  // by parameter, also of those that are dropped
  std::vector<ReplicaTensor> tensors_;
  std::vector<ReplicaRegion> regions_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_TEST_REPLICA_H_
