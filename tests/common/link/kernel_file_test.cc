#include "common/link/kernel_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(KernelFile, WhatIsThere_IsReadWhole) {
  const absl::optional<std::string> stat = ReadKernelFile("/proc/self/stat");
  ASSERT_TRUE(stat.has_value());
  EXPECT_THAT(*stat, StartsWith(absl::StrCat(getpid(), " (")));
  const absl::optional<std::string> maps = ReadKernelFile("/proc/self/maps");
  ASSERT_TRUE(maps.has_value());
  EXPECT_GT(maps->size(), 4096u) << "one piece";
  EXPECT_THAT(*maps, HasSubstr("[stack]"));
}

TEST(KernelFile, WhatIsNotThere_IsNothing) {
  EXPECT_FALSE(ReadKernelFile("/proc/0/stat").has_value());
}

// As where a process ends between the opening and the reading.
TEST(KernelFile, WhatCanBeOpenedAndNotRead_IsNothing) {
  EXPECT_FALSE(ReadKernelFile("/proc/self").has_value());
}

}  // namespace
}  // namespace optshard
