#include "common/nearest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace optshard {
namespace {

std::string Meant(absl::string_view name) {
  static const auto* const known =
      new std::vector<std::string>{"adam", "adamw", "sgd", "weight_decay", "lr"};
  return DidYouMean(name, *known);
}

TEST(DidYouMean, NearNames_TheNearestIsNamed) {
  EXPECT_EQ(Meant("weightdecay"), "; did you mean \"weight_decay\"?");
  EXPECT_EQ(Meant("weight-decay"), "; did you mean \"weight_decay\"?");
  EXPECT_EQ(Meant("AdamW"), "; did you mean \"adamw\"?");
  EXPECT_EQ(Meant("adma"), "; did you mean \"adam\"?") << "neighbours swapped";
  EXPECT_EQ(Meant("sdg"), "; did you mean \"sgd\"?");
}

TEST(DidYouMean, NothingNear_NothingIsNamed) {
  EXPECT_EQ(Meant("rmsprop"), "");
  EXPECT_EQ(Meant("learning_rate"), "");
  EXPECT_EQ(Meant(""), "");
  EXPECT_EQ(Meant(std::string(1000, 'a')), "");
  EXPECT_EQ(DidYouMean("adam", {}), "");
}

}  // namespace
}  // namespace optshard
