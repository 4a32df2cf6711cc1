// The language example: its text, its model, and a few of its steps.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/language_model.h"
#include "examples/language_text.h"
#include "tests/testing/command.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

// A directory of its own under the test's.
std::string DirectoryOf(const std::string& name) {
  std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string LongText() {
  std::string text;
  for (int i = 0; text.size() < 200'000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  return text;
}

TEST(LanguageTextTest, Read_TwoFilesAndALink_TakesTheFilesByName) {
  const std::string directory = DirectoryOf("two");
  const std::string text = LongText();
  WriteFile(directory + "/b", text.substr(1000));
  WriteFile(directory + "/a", text.substr(0, 1000));
  std::filesystem::create_symlink("b", directory + "/c");
  const auto read = ReadLanguageText(directory);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->train.numel() + read->held_out.numel(), static_cast<int64_t>(text.size()));
  EXPECT_NEAR(static_cast<double>(read->held_out.numel()), 0.1 * text.size(), 2048);
  for (int64_t i = 0; i < 2000; ++i) ASSERT_EQ(read->train[i].item<int64_t>(), text[i]) << i;
  for (int64_t i = 0; i < 2000; ++i) {
    ASSERT_EQ(read->held_out[i].item<int64_t>(), text[i + int64_t{9} * 2048]) << i;
  }
}

TEST(LanguageTextTest, Read_TooLittleOrNone_SaysHowMuchThereIs) {
  const std::string directory = DirectoryOf("little");
  WriteFile(directory + "/a", "short");
  EXPECT_THAT(ReadLanguageText(directory).status().ToString(),
              HasSubstr("5 bytes of text in 1 files; expected at least 100000"));
  EXPECT_EQ(ReadLanguageText(directory + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST(LanguageTextTest, RandomWindows_OneSeed_AreTheSamePiecesOfTheText) {
  const at::Tensor text = at::arange(1000, at::kLong);
  const at::Tensor windows = RandomWindows(text, 20, 8, 3);
  ASSERT_EQ(windows.sizes(), at::IntArrayRef({20, 9}));
  EXPECT_TRUE(windows.diff().eq(1).all().item<bool>());
  EXPECT_TRUE(windows.equal(RandomWindows(text, 20, 8, 3)));
  EXPECT_FALSE(windows.equal(RandomWindows(text, 20, 8, 4)));
}

TEST(LanguageTextTest, SeedOfStep_OtherRuns_ShareNone) {
  std::set<uint64_t> seeds;
  for (uint64_t run = 0; run < 4; ++run) {
    for (int step = 1; step <= 1000; ++step) seeds.insert(SeedOfStep(run, step));
  }
  EXPECT_EQ(seeds.size(), 4000u);
}

TEST(LanguageTextTest, RowsOfRank_OfAllRanks_AreTheWindows) {
  const at::Tensor windows = at::arange(24, at::kLong).reshape({12, 2});
  for (const int world_size : {1, 2, 3}) {
    std::vector<at::Tensor> shares;
    for (int rank = 0; rank < world_size; ++rank) {
      shares.push_back(RowsOfRank(windows, rank, world_size));
    }
    EXPECT_TRUE(at::cat(shares).equal(windows)) << world_size;
  }
}

TEST(LanguageModelTest, Forward_LaterTokensChange_ThoseBeforeAreNotConcerned) {
  const at::NoGradGuard no_grad;
  LanguageModel model(1);
  const at::Tensor tokens = at::randint(256, {2, LanguageModel::kContext}, at::kLong);
  at::Tensor others = tokens.clone();
  others.narrow(1, 40, 24).fill_(7);
  const at::Tensor logits = model.Forward(tokens).narrow(1, 0, 40);
  EXPECT_TRUE(logits.allclose(model.Forward(others).narrow(1, 0, 40)));
  EXPECT_FALSE(model.Forward(tokens)[0][40].allclose(model.Forward(others)[0][40]));
}

TEST(LanguageModelTest, Loss_Untrained_IsThatOfChance) {
  const at::NoGradGuard no_grad;
  LanguageModel model(1);
  const at::Tensor windows = at::randint(256, {8, LanguageModel::kContext + 1}, at::kLong);
  EXPECT_NEAR(model.Loss(windows).item<double>(), std::log(256.0), 0.5);
}

TEST(TrainLanguageTest, AFewSteps_BFloat16AtSevenBytes_LowersTheLossOnAllRanks) {
  if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  const std::string directory = DirectoryOf("text");
  WriteFile(directory + "/a", LongText());
  const std::string losses = ::testing::TempDir() + "/losses.csv";
  testing::Command command(
      {testing::Command::Runfile("examples/optshard-train-language"),
       "--coordinator_binary=" +
           testing::Command::Runfile("server/coordinator/optshard-coordinator"),
       "--text=" + directory, "--losses=" + losses, "--steps=8", "--report-every=1",
       "--batch-size=4", "--dtype=bfloat16", "--master-weights=24",
       "--state-dtype=int8_companded"});
  EXPECT_EQ(*command.Wait(absl::Now() + absl::Seconds(240)), 0) << command.output();
  EXPECT_THAT(command.output(), HasSubstr("All 2 ranks ended with the same parameters."));
  // Two slots and a correction of 8 bits each, and what scales blocks of them, on half of the
  // parameters.
  const std::string kept = command.output().substr(command.output().find("Rank 0 keeps ") + 13);
  int64_t elements = 0;
  for (const at::Tensor& parameter : LanguageModel(1).parameters()) elements += parameter.numel();
  EXPECT_GT(std::stod(kept), 1.5 * static_cast<double>(elements));
  EXPECT_LT(std::stod(kept), 1.7 * static_cast<double>(elements));
  std::ifstream file(losses);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "step,loss");
  std::vector<double> values;
  while (std::getline(file, line)) values.push_back(std::stod(line.substr(line.find(',') + 1)));
  ASSERT_EQ(values.size(), 8u);
  EXPECT_LT(values.back(), values.front() - 0.3);
}

// What one step of SGD by one process on the windows of `batches` makes of the model of `model`.
double LossAfterOneStep(const LanguageText& text, uint64_t model_seed, uint64_t batches_seed) {
  LanguageModel model(model_seed);
  const at::Tensor batch =
      RandomWindows(text.train, 4, LanguageModel::kContext, SeedOfStep(batches_seed, 1));
  model.Loss(batch).backward();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) parameter.add_(parameter.grad(), -0.1);
  return model.Loss(HeldOutWindows(text, LanguageModel::kContext)).item<double>();
}

TEST(TrainLanguageTest, Seed_DecidesOverTheModelsFirstValuesAndOverTheBatches) {
  if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  const std::string directory = DirectoryOf("seeded");
  WriteFile(directory + "/a", LongText());
  const LanguageText text = *ReadLanguageText(directory);
  const double expected = LossAfterOneStep(text, 2, 2);
  constexpr double kNear = 1e-4;
  ASSERT_GT(std::abs(LossAfterOneStep(text, 1, 2) - expected), 2 * kNear);
  ASSERT_GT(std::abs(LossAfterOneStep(text, 2, 1) - expected), 2 * kNear);
  const std::string losses = ::testing::TempDir() + "/seeded.csv";
  testing::Command command(
      {testing::Command::Runfile("examples/optshard-train-language"),
       "--coordinator_binary=" +
           testing::Command::Runfile("server/coordinator/optshard-coordinator"),
       "--text=" + directory, "--losses=" + losses, "--steps=1", "--batch-size=4", "--rule=sgd",
       "--lr=0.1", "--seed=2"});
  ASSERT_EQ(*command.Wait(absl::Now() + absl::Seconds(240)), 0) << command.output();
  std::ifstream file(losses);
  std::string line;
  std::getline(file, line);
  ASSERT_TRUE(std::getline(file, line)) << command.output();
  EXPECT_NEAR(std::stod(line.substr(line.find(',') + 1)), expected, kNear);
}

}  // namespace
}  // namespace optshard
