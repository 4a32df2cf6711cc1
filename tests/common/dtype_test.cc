#include "common/dtype.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

TEST(DType, Name_EachKnown_ParsesBackAndHasItsSize) {
  const struct {
    DType dtype;
    absl::string_view name;
    size_t size;
  } kTable[] = {{DType::kFloat32, "float32", 4},
                {DType::kFloat64, "float64", 8},
                {DType::kFloat16, "float16", 2},
                {DType::kBFloat16, "bfloat16", 2}};
  for (const auto& row : kTable) {
    EXPECT_TRUE(IsKnown(row.dtype));
    EXPECT_EQ(NameOf(row.dtype), row.name);
    EXPECT_EQ(SizeOf(row.dtype), row.size);
    const absl::StatusOr<DType> parsed = ParseDType(row.name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, row.dtype);
  }
}

TEST(DType, Parse_UnknownName_ListsTheKnown) {
  const absl::Status status = ParseDType("float8").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"float8\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("float32, float64, float16, bfloat16"));
}

TEST(DType, IsKnown_NumberOutside_False) {
  EXPECT_FALSE(IsKnown(static_cast<DType>(0)));
  EXPECT_FALSE(IsKnown(static_cast<DType>(5)));
}

}  // namespace
}  // namespace optshard
