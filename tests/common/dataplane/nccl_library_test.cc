// What can be told of NCCL without a GPU.
#include "common/dataplane/nccl/nccl_library.h"

#include <nccl.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclLibrary, Load_NoSuchFile_SaysWhatToDo) {
  NcclLibraryOptions options;
  options.path = "/nowhere/libnccl.so.2";
  const absl::Status refused = LoadNccl(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("install libnccl2")));
}

TEST(NcclLibrary, Load_AnotherLibrary_NamesTheMissingFunction) {
  NcclLibraryOptions options;
  options.path = "libm.so.6";
  const absl::Status refused = LoadNccl(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("libm.so.6"), HasSubstr("ncclGetVersion")));
}

TEST(NcclLibrary, Version_TooOldOrTooNew_IsRefusedInWords) {
  EXPECT_TRUE(CheckNcclVersion(NCCL_VERSION_CODE).ok());
  EXPECT_TRUE(CheckNcclVersion(NCCL_VERSION(2, 19, 0)).ok());
  const absl::Status old = CheckNcclVersion(NCCL_VERSION(2, 18, 6));
  EXPECT_TRUE(absl::IsFailedPrecondition(old)) << old;
  EXPECT_THAT(std::string(old.message()), AllOf(HasSubstr("2.18.6"), HasSubstr("2.19.0")));
  const absl::Status older = CheckNcclVersion(NCCL_VERSION(2, 8, 4));
  EXPECT_THAT(std::string(older.message()), HasSubstr("NCCL is 2.8.4;"));
  EXPECT_FALSE(CheckNcclVersion(NCCL_VERSION(3, 0, 0)).ok());
}

}  // namespace
}  // namespace optshard
