#include "server/shard/engine/replica_placement.h"

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/dataplane/peer_replicas.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_input.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

// "b" lies in the first region behind the padding of "a"; "empty" has no elements; "c" is in a
// group, and so in a region, of its own.
class ReplicaPlacementTest : public ::testing::Test {
 protected:
  ReplicaPlacementTest()
      : space_({{{{"a", {10}}, {"b", {5}}, {"empty", {0}}}}, {{{"c", {3}}}}}), layout_(space_) {
    for (const MemoryLayout::Region& region : layout_.regions()) {
      parameters_.emplace_back(region.elements);
      gradients_.emplace_back(region.elements);
      regions_.push_back({parameters_.back().data(), gradients_.back().data()});
    }
    for (int p = 0; p < space_.parameter_count(); ++p) {
      const MemoryLayout::Place& place = layout_.place(p);
      replica_.push_back({parameters_[place.region].data() + place.offset_elements,
                          gradients_[place.region].data() + place.offset_elements});
    }
  }

  absl::Status Placed() const { return CheckPlacement(space_, layout_, regions_, replica_); }

  const ParameterSpace space_;
  const MemoryLayout layout_;
  std::vector<std::vector<float>> parameters_;  // by region
  std::vector<std::vector<float>> gradients_;
  std::vector<ReplicaRegion> regions_;
  std::vector<ReplicaTensor> replica_;
};

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST_F(ReplicaPlacementTest, TensorsInTheirPlaces_AreAccepted) {
  EXPECT_TRUE(CheckTensors(space_, replica_).ok());
  EXPECT_TRUE(Placed().ok());
}

TEST_F(ReplicaPlacementTest, AnotherNumberOfTensors_IsRefusedWithBothCounts) {
  const std::string text = "the replica has 3 tensors, expected one for each of the 4 parameters";
  replica_.pop_back();
  ExpectRefused(CheckTensors(space_, replica_), text);
  ExpectRefused(Placed(), text);
}

TEST_F(ReplicaPlacementTest, ParameterWithoutMemory_IsRefusedByName) {
  replica_[1].parameter = nullptr;
  ExpectRefused(CheckTensors(space_, replica_), "parameter 1 \"b\" has no memory");
  ExpectRefused(Placed(), "memory of parameter 1 \"b\"");
}

TEST_F(ReplicaPlacementTest, TensorOfAnotherType_IsRefusedByNameWithBothTypes) {
  double value = 0;
  const ReplicaTensor good = replica_[1];
  replica_[1].parameter = &value;
  ExpectRefused(CheckTensors(space_, replica_),
                "the memory of parameter 1 \"b\" is float64, expected float32");
  replica_[1] = good;
  replica_[1].gradient = &value;
  ExpectRefused(CheckTensors(space_, replica_),
                "the gradient of parameter 1 \"b\" is float64, expected float32");
}

TEST_F(ReplicaPlacementTest, TensorsAnywhere_HaveMemoryButAreMisplaced) {
  std::vector<float> elsewhere(5);
  replica_[1].parameter = elsewhere.data();
  EXPECT_TRUE(CheckTensors(space_, replica_).ok());
  ExpectRefused(Placed(), absl::StrFormat("the memory of parameter 1 \"b\" does not lie where the "
                                          "memory layout places it: it is at %p, expected at %p",
                                          elsewhere.data(), &parameters_[0][16]));
}

TEST_F(ReplicaPlacementTest, MisplacedGradient_IsRefusedByName) {
  replica_[3].gradient = &gradients_[0][0];  // where group 0 has its own
  EXPECT_TRUE(CheckTensors(space_, replica_).ok());
  ExpectRefused(Placed(), absl::StrFormat("the gradient of parameter 3 \"c\" does not lie where "
                                          "the memory layout places it: it is at %p, expected at "
                                          "%p",
                                          &gradients_[0][0], &gradients_[1][0]));
}

TEST_F(ReplicaPlacementTest, MissingGradient_IsAccepted) {
  replica_[0].gradient = nullptr;
  EXPECT_TRUE(Placed().ok());
}

TEST_F(ReplicaPlacementTest, ParameterWithoutElements_MayLieAnywhereAndNowhere) {
  float elsewhere = 0;
  for (float* const address : {&elsewhere, static_cast<float*>(nullptr)}) {
    replica_[2] = {address, address};
    EXPECT_TRUE(CheckTensors(space_, replica_).ok());
    EXPECT_TRUE(Placed().ok());
  }
}

}  // namespace
}  // namespace optshard
