#include "client/bucket_view.h"

#include <type_traits>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(BucketViewTest, Construct_FromNothingOrBool_IsAutomaticOrThatValue) {
  BucketView view;
  EXPECT_EQ(view.choice(), BucketView::kAutomatic);
  view = true;
  EXPECT_EQ(view, BucketView::kOn);
  view = false;
  EXPECT_EQ(view, BucketView::kOff);
  view = BucketView::kAutomatic;
  EXPECT_NE(view, BucketView::kOff);
}

TEST(BucketViewTest, Construct_FromPointerOrNumber_DoesNotCompile) {
  EXPECT_FALSE((std::is_convertible_v<const char*, BucketView>));
  EXPECT_FALSE((std::is_convertible_v<int, BucketView>));
}

TEST(BucketViewTest, Names_AreParsed) {
  for (const BucketView view : {BucketView::kAutomatic, BucketView::kOn, BucketView::kOff}) {
    ASSERT_TRUE(ParseBucketView(NameOf(view)).ok());
    EXPECT_EQ(*ParseBucketView(NameOf(view)), view);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseBucketView("true").status()));
}

}  // namespace
}  // namespace optshard
