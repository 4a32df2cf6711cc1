// How tasks become what kernels read: by which pass, in which chunks, and what is refused.
#include "server/update/cuda/launch_table.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "server/update/cuda/element_wise_body.h"

namespace optshard::testing {
namespace {

// Never read: only where arrays begin counts.
template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

using Place = kernels::PlaceIn<float, KernelPass::kPlain>;

class LaunchTableTest : public ::testing::Test {
 protected:
  LaunchTableTest() { coefficients_.slots = 1; }

  UpdateTask TaskOf(int64_t elements) {
    UpdateTask task;
    task.coefficients = &coefficients_;
    task.span.parameter = At<float>(0x1000);
    task.span.gradient = At<float>(0x2000);
    task.span.slots[0] = At<float>(0x3000);
    task.span.elements = elements;
    return task;
  }

  static KernelPass PassOf(const UpdateTask& task) {
    const auto tables = LaunchTable::For({task});
    EXPECT_TRUE(tables.ok()) << tables.status();
    EXPECT_EQ(tables->size(), 1u);
    return tables->front().pass();
  }

  Coefficients coefficients_;
};

TEST_F(LaunchTableTest, TypesOfTheArrays_DecideThePass) {
  UpdateTask task = TaskOf(10);
  EXPECT_EQ(PassOf(task), KernelPass::kPlain);
  task.span.gradient = ConstBuffer(At<void>(0x2000), DType::kBFloat16);
  EXPECT_EQ(PassOf(task), KernelPass::kMixed);
  task = TaskOf(10);
  task.span.parameter = Buffer(At<void>(0x1000), DType::kBFloat16);
  task.span.master = At<float>(0x4000);
  EXPECT_EQ(PassOf(task), KernelPass::kMixed);
  task.span.gradient = ConstBuffer(At<void>(0x2000), DType::kBFloat16);
  EXPECT_EQ(PassOf(task), KernelPass::kMaster);
  task.span.master = nullptr;
  EXPECT_EQ(PassOf(task), KernelPass::kMixed);
  task.span.slots[0] = Buffer(At<void>(0x3000), DType::kBFloat16);
  EXPECT_EQ(PassOf(task), KernelPass::kBFloat16);
  task.span.correction = At<int8_t>(0x4000);
  EXPECT_EQ(PassOf(task), KernelPass::kMixed);
  task = TaskOf(10);
  task.span.slots[0] = CodedArray{BlockCode::kDynamicSigned, At<uint8_t>(0x3000), At<void>(0x5000)};
  EXPECT_EQ(PassOf(task), KernelPass::kCodedFloat32);
  task.span.gradient = ConstBuffer(At<void>(0x2000), DType::kBFloat16);
  EXPECT_EQ(PassOf(task), KernelPass::kCoded);
}

TEST_F(LaunchTableTest, TasksOfOnePass_ShareALaunch) {
  UpdateTask half = TaskOf(10);
  half.span.gradient = ConstBuffer(At<void>(0x2000), DType::kFloat16);
  const auto tables = LaunchTable::For({TaskOf(10), half, TaskOf(0), TaskOf(7), half});
  ASSERT_TRUE(tables.ok()) << tables.status();
  ASSERT_EQ(tables->size(), 2u);
  EXPECT_EQ((*tables)[0].chunks(), 2);
  EXPECT_EQ((*tables)[1].chunks(), 2);
}

TEST_F(LaunchTableTest, Chunks_MoreThan2To31Elements_AreFoundByTheirSpan) {
  constexpr int64_t kChunk = ChunkElements<float>(KernelPass::kPlain);
  constexpr int64_t kMany = int64_t{3} << 32;
  const std::vector<UpdateTask> tasks = {TaskOf(1), TaskOf(kMany), TaskOf(kChunk + 1)};
  const auto tables = LaunchTable::For(tasks);
  ASSERT_TRUE(tables.ok()) << tables.status();
  const LaunchTable& table = tables->front();
  EXPECT_EQ(table.chunks(), 1 + kMany / kChunk + 2);
  std::vector<int64_t> copy(table.bytes() / sizeof(int64_t));
  table.CopyTo(copy.data());
  const auto arguments = table.ArgumentsAt<float>(copy.data(), nullptr, nullptr);
  const auto expect = [&](int64_t chunk, int span, int64_t first) {
    const kernels::ChunkPlace place = kernels::FindChunk(arguments, chunk, kChunk);
    EXPECT_EQ(place.span - arguments.spans, span) << "chunk " << chunk;
    EXPECT_EQ(place.first, first) << "chunk " << chunk;
  };
  expect(0, 0, 0);
  expect(1, 1, 0);
  expect(kMany / kChunk, 1, kMany - kChunk);
  expect(kMany / kChunk + 1, 2, 0);
  expect(kMany / kChunk + 2, 2, kChunk);
  const auto last = kernels::PlaceOf<Place>(arguments.spans[1], kMany - kChunk, kUnitsPerChunk - 1,
                                            kKernelThreads - 1);
  EXPECT_EQ(last.first, kMany - 4);
  EXPECT_TRUE(last.is_whole);
}

TEST_F(LaunchTableTest, MisalignedArray_NoWholeVectors) {
  UpdateTask task = TaskOf(1024);
  task.span.gradient = At<float>(0x2004);
  const auto tables = LaunchTable::For({task});
  ASSERT_TRUE(tables.ok()) << tables.status();
  std::vector<int64_t> copy(tables->front().bytes() / sizeof(int64_t));
  tables->front().CopyTo(copy.data());
  const auto arguments = tables->front().ArgumentsAt<float>(copy.data(), nullptr, nullptr);
  EXPECT_FALSE(kernels::PlaceOf<Place>(arguments.spans[0], 0, 0, 0).is_whole);
}

TEST_F(LaunchTableTest, Replicas_Refused) {
  UpdateTask task = TaskOf(10);
  const void* const gradients[] = {At<void>(0x6000), At<void>(0x7000)};
  task.span.replicas.gradients = gradients;
  const auto tables = LaunchTable::For({task});
  EXPECT_EQ(tables.status().code(), absl::StatusCode::kUnimplemented) << tables.status();
}

}  // namespace
}  // namespace optshard::testing
