// Slots read through the service.

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/inspection/shard_owner_rpc.h"
#include "tests/server/shard/inspection/shard_owner_service_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(ShardOwnerServiceTest, ErrorWithALongNameOfManyByteCharacters_StaysThatError) {
  Register();
  v1::ReadSlotRequest request;
  for (int i = 0; i < 5000; ++i) request.mutable_name()->append("\xc3\xa4");
  std::vector<v1::SlotChunk> chunks;
  const grpc::Status status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
}

TEST_F(ShardOwnerServiceTest, ReadSlot_StreamsAllThatIsOwnedInOrder) {
  AddSlice("large", {200000}, 0, 200000);
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  request.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  ASSERT_TRUE(Read(request, &chunks).ok());
  int64_t next = 0;
  for (const v1::SlotChunk& chunk : chunks) {
    EXPECT_EQ(chunk.offset_elements(), next);
    EXPECT_EQ(chunk.step(), 1);
    EXPECT_LE(chunk.values_size(), 65536);
    for (const float value : chunk.values()) ASSERT_EQ(value, static_cast<float>(next++));
  }
  EXPECT_EQ(next, 200000);
  EXPECT_EQ(chunks.size(), 4);
  EXPECT_EQ(chunks[0].summary(), "exp_avg of large, float32, elements [0, 65536), step 1");

  // A part, by index; and from the slice's beginning on.
  request.clear_name();
  request.set_parameter(1);
  request.set_offset_elements(50001);
  request.set_elements(2);
  chunks.clear();
  ASSERT_TRUE(Read(request, &chunks).ok());
  ASSERT_EQ(chunks.size(), 1);
  EXPECT_THAT(chunks[0].values(), ::testing::ElementsAre(50001, 50002));
}

TEST_F(ShardOwnerServiceTest, ReadOfAFloat64Slot_GivesAllBits) {
  view_.slot_format = StateFormat::kFloat64;
  view_.read = [](int64_t, absl::Span<double> out) -> absl::StatusOr<StepNumber> {
    for (double& value : out) value = 0.1;
    return StepNumber{1};
  };
  AddSlice("large", {3}, 0, 3);
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  request.set_slot("exp_avg");
  const v1::SlotChunk chunk = ReadOneChunk(request);
  EXPECT_EQ(chunk.dtype(), v1::DTYPE_FLOAT64);
  EXPECT_EQ(chunk.values_size(), 0);
  EXPECT_THAT(chunk.float64_values(), ::testing::ElementsAre(0.1, 0.1, 0.1));
}

TEST_F(ShardOwnerServiceTest, ReadOfAScalarSlot_IsOneNumber) {
  AddSlice("large", {3}, 0, 3);
  view_.slices.back().slot_shapes = {{"mu_product", {}}, {"step", {}}};
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  for (const std::string slot : {"mu_product", "step"}) {
    request.set_slot(slot);
    const v1::SlotChunk chunk = ReadOneChunk(request);
    EXPECT_EQ(chunk.values_size(), 1);
  }
}

TEST_F(ShardOwnerServiceTest, SlotWithAShapeOfItsOwn_IsListedAndReadInIt) {
  AddSlice("matrix", {10, 64}, 0, 640);
  view_.slices.back().slots = {"row_var", "step"};
  view_.slices.back().slot_shapes = {{"row_var", {10, 1}}, {"step", {}}};
  const v1::OwnedParameter listed = ToProto(view_.slices.back());
  EXPECT_THAT(listed.summary(), ::testing::HasSubstr(": row_var [10, 1], step ("));
  ASSERT_EQ(listed.slot_shapes_size(), 1);
  EXPECT_EQ(listed.slot_shapes(0).slot(), "row_var");
  EXPECT_THAT(listed.slot_shapes(0).shape(), ::testing::ElementsAre(10, 1));
  Register();
  v1::ReadSlotRequest request;
  request.set_name("matrix");
  request.set_slot("row_var");
  request.set_offset_elements(3);
  const v1::SlotChunk chunk = ReadOneChunk(request);
  EXPECT_EQ(chunk.values_size(), 7);
}

TEST_F(ShardOwnerServiceTest, ReadOfAnEmptyParameter_IsOneEmptyChunk) {
  AddSlice("empty", {0}, 0, 0);
  Register();
  v1::ReadSlotRequest request;
  request.set_name("empty");
  request.set_slot("exp_avg");
  const v1::SlotChunk chunk = ReadOneChunk(request);
  EXPECT_EQ(chunk.values_size(), 0);
  EXPECT_EQ(chunk.step(), 1);
}

TEST_F(ShardOwnerServiceTest, StepBetweenTwoChunks_Aborts) {
  AddSlice("large", {200000}, 0, 200000);
  view_.read = [](int64_t offset, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return offset < 100000 ? 7 : 8;
  };
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  request.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  const grpc::Status status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("step 8 came while step 7 was read"));
  EXPECT_EQ(chunks.size(), 2);
}

TEST_F(ShardOwnerServiceTest, BadRead_SaysWhatThereIs) {
  Register();
  v1::ReadSlotRequest request;
  request.set_name("conv");
  std::vector<v1::SlotChunk> chunks;
  grpc::Status status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("fc.weight, fc.bias"));

  request.set_name("fc.bias");
  request.set_offset_elements(-1);
  EXPECT_EQ(Read(request, &chunks).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  request.set_offset_elements(0);
  request.set_elements(5);
  view_.read = [](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return absl::OutOfRangeError("owned: [50000, 100000)");
  };
  status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "owned: [50000, 100000)");
  EXPECT_TRUE(chunks.empty());
}

TEST_F(ShardOwnerServiceTest, ReadBeyondAllNumbers_IsOutOfRange) {
  Register();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const std::string slot : {"exp_avg", "step"}) {
    v1::ReadSlotRequest request;
    request.set_slot(slot);
    request.set_offset_elements(kMax);
    request.set_elements(1);
    std::vector<v1::SlotChunk> chunks;
    EXPECT_EQ(Read(request, &chunks).error_code(), grpc::StatusCode::OUT_OF_RANGE);
    request.set_offset_elements(1);
    request.set_elements(kMax);
    EXPECT_EQ(Read(request, &chunks).error_code(), grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_TRUE(chunks.empty());
  }
}

TEST_F(ShardOwnerServiceTest, UnregisterWhileACallReads_WaitsForItAndNoLonger) {
  AddSlice("large", {200000}, 0, 200000);
  absl::Notification reading;
  absl::Notification go_on;
  bool left = false;
  view_.read = [&](int64_t offset, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    EXPECT_FALSE(left);
    if (offset == 0) {
      reading.Notify();
      go_on.WaitForNotification();
    }
    return StepNumber{1};
  };
  Register();
  grpc::Status status;
  std::vector<v1::SlotChunk> chunks;
  std::thread client([&] {
    v1::ReadSlotRequest request;
    request.set_name("large");
    request.set_slot("exp_avg");
    status = Read(request, &chunks);
  });
  reading.WaitForNotification();
  std::thread owner([&] {
    views_.Unregister("default", 1);
    left = true;
  });
  // From the moment when Unregister has begun no other call finds the view.
  v1::ShardDescription description;
  while (Describe("default", &description).ok()) std::this_thread::yield();
  go_on.Notify();
  owner.join();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(chunks.size(), 1);
}

}  // namespace
}  // namespace optshard::testing
