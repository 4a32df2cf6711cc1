// A model that a job exports is the one that the libraries of others have read
// (golden/check_exports.py).
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "server/checkpoint/posix_file_system.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/files_in.h"

namespace optshard {
namespace {

constexpr char kGolden[] = "tests/client/golden/exports/model";

struct GoldenParameter {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> shape;
};

// As Model in golden/make_imports.py.
std::vector<GoldenParameter> GoldenParameters() {
  return {{"scale", at::kDouble, {}},
          {"unused", at::kHalf, {0, 4}},
          {"encoder.weight", at::kBFloat16, {5, 3}},
          {"encoder.bias", at::kBFloat16, {5}},
          {"norm.weight", at::kFloat, {7}},
          {"norm.bias", at::kFloat, {7}}};
}

// As fill() there.
at::Tensor Parameter(const GoldenParameter& golden, int64_t index) {
  const at::Tensor like = at::empty(golden.shape, golden.type);
  const at::Tensor numbers = at::arange(like.numel()).mul(7).add(3 * index).remainder(251);
  return numbers.sub(125).div(16).reshape(golden.shape).to(golden.type).set_requires_grad(true);
}

// As gradient() in golden/make_state_dicts.py.
at::Tensor Gradient(const at::Tensor& parameter, int64_t index, int64_t step) {
  const at::Tensor numbers = at::arange(parameter.numel()).add(7 * step + 3 * index).remainder(11);
  return numbers.sub(5).div(8).reshape(parameter.sizes()).to(parameter.scalar_type());
}

// What the files are called, and what they have.
std::map<std::string, std::string> GoldenFiles() {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files.emplace(entry.path().filename(), std::string(std::istreambuf_iterator<char>(file), {}));
  }
  return files;
}

// Trains the golden model, and exports it. Where.
std::string Exported(const RuleOptions& rule) {
  std::string exported = absl::StrCat(testing::NewCheckpointRoot(), "/model");
  testing::ExpectAllOk(testing::RunServedRanks(2, [&](ShardedOptimizerOptions options) {
    std::vector<at::Tensor> parameters;
    for (const GoldenParameter& each : GoldenParameters()) {
      parameters.push_back(Parameter(each, static_cast<int64_t>(parameters.size())));
      options.parameter_names.push_back(each.name);
    }
    ShardedOptimizer optimizer(parameters, rule, options);
    for (int64_t step = 1; step <= 2; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad() = Gradient(parameters[i], static_cast<int64_t>(i), step);
      }
      optimizer.step();
    }
    optimizer.export_model(exported, /*shard_bytes=*/64);
    EXPECT_EQ(optimizer.wait_checkpoint(), exported);
    optimizer.Close();
  }));
  return exported;
}

TEST(ExportedModel, OfSeveralTypes_HasTheFilesThatOthersHaveRead) {
  const std::string exported = Exported(RuleOptions("sgd").Set("lr", 0.25));
  PosixFileSystem system;
  EXPECT_EQ(testing::FilesIn(system, exported), GoldenFiles())
      << exported << " is not " << kGolden
      << ": copy it there (with --sandbox_debug it stays) and run check_exports.py";
}

TEST(ExportedModel, OfGroupsThatAnOptimizerClassSteps_IsTheSame) {
  const std::string exported = Exported(RuleOptions::OfClass<torch::optim::SGD>(0.25));
  PosixFileSystem system;
  EXPECT_EQ(testing::FilesIn(system, exported), GoldenFiles());
}

TEST(ExportedModel, StateThatAnOptimizerClassKeeps_IsNotSaved) {
  testing::ExpectAllOk(testing::RunServedRanks(1, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer({Parameter({"a", at::kFloat, {3}}, 0)},
                               RuleOptions::OfClass<torch::optim::SGD>(0.25), options);
    const absl::Status refused =
        testing::ErrorOf([&] { optimizer.save_checkpoint(testing::NewCheckpointRoot()); });
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("local_optimizer()"));
  }));
}

}  // namespace
}  // namespace optshard
