#include "common/link/memory_budget.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::function<absl::optional<int64_t>()> Always(absl::optional<int64_t> headroom) {
  return [headroom] { return headroom; };
}

TEST(MemoryBudget, Reserve_WithinTheLimit_CountsUpAndDown) {
  MemoryBudget budget(100, Always(absl::nullopt));
  EXPECT_TRUE(budget.Reserve(60, "a").ok());
  EXPECT_TRUE(budget.Reserve(40, "b").ok());
  EXPECT_EQ(budget.reserved_bytes(), 100);
  budget.Release(60);
  EXPECT_EQ(budget.reserved_bytes(), 40);
  EXPECT_TRUE(budget.Reserve(60, "c").ok());
}

TEST(MemoryBudget, Reserve_BeyondTheLimit_SaysNeedLimitAndTaken) {
  MemoryBudget budget(1000, Always(absl::nullopt));
  ASSERT_TRUE(budget.Reserve(600, "parameters of rank 0").ok());
  const absl::Status status = budget.Reserve(401, "parameters of rank 1");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("parameters of rank 1 needs 401 bytes"), HasSubstr("limit is 1000 bytes"),
            HasSubstr("600 bytes (0.00 GiB) of it taken"), HasSubstr("raise the limit")));
  EXPECT_EQ(budget.reserved_bytes(), 600);
}

TEST(MemoryBudget, Reserve_BeyondTheHeadroom_SaysNeedAndWhatIsLeft) {
  MemoryBudget budget(absl::nullopt, Always(int64_t{3} << 30));
  EXPECT_TRUE(budget.Reserve(int64_t{3} << 30, "a").ok());
  const absl::Status status = budget.Reserve((int64_t{3} << 30) + 1, "gradients of rank 2");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("gradients of rank 2 needs 3221225473 bytes (3.00 GiB)"),
                    HasSubstr("left to this process is 3221225472 bytes")));
  EXPECT_EQ(budget.reserved_bytes(), int64_t{3} << 30);
}

TEST(MemoryBudget, Reserve_NegativeOrHuge_IsRefused) {
  MemoryBudget budget(100, Always(absl::nullopt));
  EXPECT_EQ(budget.Reserve(-1, "a").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(budget.Reserve(1, "b").ok());
  EXPECT_EQ(budget.Reserve(std::numeric_limits<int64_t>::max(), "c").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.reserved_bytes(), 1);
}

TEST(MemoryBudget, Unlimited_LittleIsAsked_Reserves) {
  EXPECT_TRUE(MemoryBudget::Unlimited().Reserve(1, "a byte").ok());
  MemoryBudget::Unlimited().Release(1);
  EXPECT_EQ(MemoryBudget::Unlimited().reserved_bytes(), 0);
}

}  // namespace
}  // namespace optshard
