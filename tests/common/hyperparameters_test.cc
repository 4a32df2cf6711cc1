#include "common/hyperparameters.h"

#include <cstring>
#include <limits>
#include <utility>

#include "gtest/gtest.h"

namespace optshard {
namespace {

Hyperparameters With(absl::string_view name, HyperValue value) {
  Hyperparameters group;
  group.Set(name, std::move(value));
  return group;
}

TEST(HyperparametersTest, ToString_Values_AreShortestAndOrderedByName) {
  Hyperparameters group;
  group.Set("lr", 0.1);
  group.Set("eps", 1.0 / 3);
  group.Set("betas", Numbers{0.9, 0.999});
  group.Set("amsgrad", true);
  group.Set("mode", std::string("slow"));
  EXPECT_EQ(group.ToString(),
            "amsgrad=true betas=[0.9, 0.999] eps=0.3333333333333333 lr=0.1 mode=\"slow\"");
  EXPECT_EQ(ToString(HyperValue(std::numeric_limits<double>::quiet_NaN())), "nan");
}

TEST(HyperparametersTest, Digest_EqualSets_IsEqualWhateverTheOrderOfSetting) {
  Hyperparameters a = With("lr", 0.1);
  a.Set("eps", 1e-8);
  Hyperparameters b = With("eps", 1e-8);
  b.Set("lr", 0.1);
  EXPECT_EQ(a.Digest(), b.Digest());
  EXPECT_EQ(a, b);
}

TEST(HyperparametersTest, Digest_AnyDifference_Differs) {
  const uint64_t digest = With("lr", 0.1).Digest();
  EXPECT_NE(digest, With("lr", 0.1 + 1e-17 + 1e-16).Digest());
  EXPECT_NE(digest, With("lr2", 0.1).Digest());
  EXPECT_NE(digest, Hyperparameters().Digest());
  EXPECT_NE(With("x", true).Digest(), With("x", false).Digest());
  EXPECT_NE(With("x", Numbers{0, 1}).Digest(), With("x", Numbers{1, 0}).Digest());
  EXPECT_NE(With("x", Numbers{0, 1}).Digest(), With("x", Numbers{0, 2}).Digest());
  EXPECT_NE(With("x", Numbers{0}).Digest(), With("x", Numbers{0, 0}).Digest());
  EXPECT_NE(With("x", false).Digest(), With("x", 0.0).Digest());
  EXPECT_NE(With("x", std::string("a")).Digest(), With("x", std::string("b")).Digest());
}

// The further numbers of one set have the bytes of another option: only the count tells them apart.
TEST(HyperparametersTest, Digest_NumbersWithTheBytesOfAnotherOption_Differs) {
  const char bytes[] = {'y', 'y', 'y',  'y',
                        'y', 'y', '\0', static_cast<char>(HyperValue(0.0).index())};
  double as_number = 0;
  static_assert(sizeof bytes == sizeof as_number);
  std::memcpy(&as_number, bytes, sizeof bytes);
  Hyperparameters two = With("x", Numbers{1});
  two.Set("yyyyyy", 0.5);
  EXPECT_NE(With("x", Numbers{1, as_number, 0.5}).Digest(), two.Digest());
}

TEST(HyperparametersTest, Find_AbsentName_IsNull) {
  EXPECT_EQ(Hyperparameters().Find("lr"), nullptr);
}

TEST(HyperparametersTest, Number_AbsentOrOfAnotherType_Dies) {
  EXPECT_DEATH(Hyperparameters().Number("lr"), "no number \"lr\"");
  EXPECT_DEATH(With("lr", true).Number("lr"), "no number \"lr\" in \\{lr=true\\}");
}

TEST(HyperparametersTest, Choice_OfAnotherType_Dies) {
  EXPECT_EQ(With("mode", std::string("slow")).Choice("mode"), "slow");
  EXPECT_DEATH(With("mode", 1.0).Choice("mode"), "no choice \"mode\" in \\{mode=1\\}");
}

TEST(NumbersTest, MoreThanAHyperparameterMayHave_Die) {
  EXPECT_EQ((Numbers{1, 2, 3, 4}).size(), kMaxNumbers);
  EXPECT_DEATH((Numbers{1, 2, 3, 4, 5}), "5 were given for one hyperparameter, expected at most 4");
}

}  // namespace
}  // namespace optshard
