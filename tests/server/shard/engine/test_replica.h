// A rank's parameters and gradients for tests, laid out in one of the ways that a trainer may, and
// values for them whose sums depend on the order.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_TEST_REPLICA_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_TEST_REPLICA_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/device_api.h"
#include "common/dtype.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"

namespace optshard::testing {

// Values of any dtype are given as doubles, which hold them exactly.
using Values = std::vector<double>;

// Values of the parameter's dtype, one for each element. Magnitudes differ by 2^16, so that sums in
// its arithmetic depend on their order. The same for the same arguments, on every machine.
Values OrderSensitiveValues(const ParameterSpec& parameter, uint64_t seed);

// The value of `dtype` that is nearest.
double RoundedTo(DType dtype, double value);

// To and from an array's type; what is stored must be a value of it.
void Store(const Values& values, Buffer to);
Values Load(ConstBuffer from, int64_t elements);

// "" where equal to the bit; otherwise index and both values, also in hex. Sizes must be equal.
std::string BitDifference(const Values& expected, const Values& actual);

enum class Placement {
  kFlatRegions,    // one buffer a region, and the replica vouches for its padding
  kFlatUnvouched,  // the same without saying so
  kScattered,      // each tensor in an allocation of exactly its size
  kReachable,      // as kFlatRegions, and the plane reaches the replicas of all ranks
  kOneCopy,        // as kReachable, with one copy of the parameters for all ranks
  kNodes,          // as kFlatRegions, and each node's plane reaches the replicas of its ranks
};
std::string NameOf(Placement placement);

class TestReplica {
 public:
  // kOneCopy: the parameters are those of `parameters_of`, if it is given. `device`: the memory is
  // pinned, so that the device reaches it, too.
  TestReplica(const ParameterSpace& space, Placement placement,
              const TestReplica* parameters_of = nullptr, DeviceApi* device = nullptr);

  // Copies values in; the gradient becomes present.
  void SetParameter(int parameter, const Values& values);
  void SetGradient(int parameter, const Values& values);
  void DropGradient(int parameter) { tensors_[parameter].gradient = nullptr; }
  // Makes the gradient one of these rows alone. What stands at the others stays.
  void SetGradientRows(int parameter, const std::function<bool(int64_t row)>& has);

  Values Parameter(int parameter) const;
  Values Gradient(int parameter) const;

  const std::vector<ReplicaTensor>& tensors() const { return tensors_; }
  const std::vector<ReplicaRegion>& regions() const { return regions_; }

 private:
  Buffer Place(int parameter, bool gradient);
  Buffer Allocate(int64_t elements, DType dtype);

  ParameterSpace space_;
  MemoryLayout layout_;
  Placement placement_;
  DeviceApi* device_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<Buffer> flat_[2];                     // by region: parameters, gradients
  std::vector<Buffer> gradients_;                   // by parameter, also of those that are dropped
  std::map<int, std::vector<uint64_t>> row_marks_;  // by parameter
  std::vector<ReplicaTensor> tensors_;
  std::vector<ReplicaRegion> regions_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_TEST_REPLICA_H_
