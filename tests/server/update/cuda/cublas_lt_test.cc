// What can be told of cuBLASLt without a GPU.
#include "server/update/cuda/cublas_lt.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CublasLt, Load_NoSuchFile_SaysWhatToDo) {
  const absl::Status refused = LoadCublasLt("/nowhere/libcublasLt.so.13").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("/nowhere/libcublasLt.so.13"), HasSubstr("install CUDA 13")));
}

TEST(CublasLt, Load_AnotherLibrary_NamesTheMissingFunction) {
  const absl::Status refused = LoadCublasLt("libm.so.6").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("libm.so.6"), HasSubstr("cublasLtGetStatusString")));
}

}  // namespace
}  // namespace optshard
