#include "server/node/admission_record.h"

#include <cstddef>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/node/doorbell_shape.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard {
namespace {

AttachRequest Request() {
  AttachRequest request;
  request.job = "job";
  request.optimizer = "adam of the generator";
  request.rank = 3;
  request.spec.world_size = 4;
  request.spec.space = testing::MixedSpace();
  return request;
}

class AdmissionRecordTest : public ::testing::Test {
 protected:
  struct alignas(64) Line {
    char bytes[64];
  };

  AdmissionRecordTest() : bytes_(AdmissionRecord::Bytes(Request())), memory_((bytes_ + 63) / 64) {}

  // Always another one: what it knows is in the memory.
  AdmissionRecord record() { return AdmissionRecord(memory_.data(), bytes_); }

  const size_t bytes_;
  std::vector<Line> memory_;
};

TEST_F(AdmissionRecordTest, Request_ThereAndBack_IsTheSame) {
  record().SetRequest(Request());
  const absl::StatusOr<AttachRequest> read = record().Request();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->optimizer, Request().optimizer);
  EXPECT_EQ(read->rank, 3);
  EXPECT_FALSE(FirstDifference(read->spec.space, "the record", Request().spec.space, "the request")
                   .has_value());
}

TEST_F(AdmissionRecordTest, Hyperparameters_LieBesideTheRequest) {
  record().SetRequest(Request());
  const std::string most(DoorbellShapeOf(Request().spec).hyperparameter_bytes(), 'h');
  record().hyperparameters().Offer(1, most);
  record().hyperparameters().Offer(2, most);
  EXPECT_EQ(record().hyperparameters().After(1).bytes, most);
  EXPECT_EQ(record().Request()->optimizer, Request().optimizer);
}

TEST_F(AdmissionRecordTest, New_IsNotSynced_AndHasNoRequest) {
  EXPECT_FALSE(record().synced());
  record().SetSynced(true);
  EXPECT_TRUE(record().synced());
  EXPECT_TRUE(absl::IsFailedPrecondition(record().Request().status()));
}

TEST_F(AdmissionRecordTest, OfFewerBytesThanItSays_IsRefused) {
  record().SetRequest(Request());
  for (const size_t bytes : {size_t{0}, size_t{23}, size_t{24}, bytes_ - 1}) {
    const absl::Status refused = AdmissionRecord(memory_.data(), bytes).Request().status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << bytes << ": " << refused;
  }
}

}  // namespace
}  // namespace optshard
