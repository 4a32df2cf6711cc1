#include "examples/digits_data.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <set>

namespace optshard {
namespace {

std::string GzipFile(const std::string& text) {
  std::string path = ::testing::TempDir() + "/digits_data_test.csv.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), text.size());
  gzclose(file);
  return path;
}

std::string Line(const std::string& label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += std::to_string(i % 17) + ",";
  return line + label + "\n";
}

std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += Line(std::to_string(i % 10));
  return text;
}

TEST(DigitsDataTest, Read_TheRealFile_Has1797DigitsFrom0To1) {
  const auto digits = ReadDigits(DigitsPath());
  ASSERT_TRUE(digits.ok()) << digits.status();
  EXPECT_EQ(digits->images.size(0), 1797);
  EXPECT_EQ(digits->images.min().item<float>(), 0);
  EXPECT_EQ(digits->images.max().item<float>(), 1);
  EXPECT_EQ(digits->labels.min().item<int64_t>(), 0);
  EXPECT_EQ(digits->labels.max().item<int64_t>(), 9);
}

TEST(DigitsDataTest, Read_NoFile_IsNotFoundNamingIt) {
  const auto digits = ReadDigits("/no/such/file");
  EXPECT_EQ(digits.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(digits.status().message().find("/no/such/file"), absl::string_view::npos);
}

TEST(DigitsDataTest, Read_BadLine_IsDataLossNamingIt) {
  for (const std::string& bad : {Line("10"), Line("x"), std::string("1,2,3\n")}) {
    const auto digits = ReadDigits(GzipFile(Lines(400) + bad));
    EXPECT_EQ(digits.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(digits.status().message().find("line 401"), absl::string_view::npos)
        << digits.status();
  }
}

TEST(DigitsDataTest, Read_TooFewDigits_IsDataLoss) {
  EXPECT_EQ(ReadDigits(GzipFile(Lines(360))).status().code(), absl::StatusCode::kDataLoss);
}

TEST(DigitsDataTest, Permutation_AnySeed_HasEachNumberOnce) {
  const std::vector<int64_t> order = Permutation(100, 5);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 100u);
  EXPECT_EQ(order, Permutation(100, 5));
  EXPECT_NE(order, Permutation(100, 6));
}

TEST(DigitsDataTest, Permutation_Seed_IsTheSameOnEveryMachine) {
  EXPECT_EQ(Permutation(6, 1), (std::vector<int64_t>{1, 3, 0, 4, 5, 2}));
}

TEST(DigitsDataTest, Split_Digits_HoldsOut360AndLosesNone) {
  const auto digits = ReadDigits(GzipFile(Lines(400)));
  ASSERT_TRUE(digits.ok()) << digits.status();
  const DigitsSplit split = Split(*digits, 1);
  EXPECT_EQ(split.held_out.labels.numel(), 360);
  EXPECT_EQ(split.train.labels.numel(), 40);
  EXPECT_EQ(split.held_out.labels.sum().item<int64_t>() + split.train.labels.sum().item<int64_t>(),
            digits->labels.sum().item<int64_t>());
}

}  // namespace
}  // namespace optshard
