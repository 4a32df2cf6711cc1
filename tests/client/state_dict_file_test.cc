// State dicts in files: of ours, and of other libraries (golden/make_imports.py).
#include "client/state_dict_file.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/foreign_state_dicts.h"
#include "client/owner/tensor_files.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "server/checkpoint/state_file/state_file.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ExpectAllOk;
using testing::FakeFileSystem;
using ::testing::HasSubstr;
using testing::RunRanks;

constexpr char kImports[] = "tests/client/golden/imports/";
constexpr char kExports[] = "tests/client/golden/exports/";
// As in golden/make_imports.py.
const std::vector<std::vector<int64_t>> kShapes = {{5, 3}, {6, 20}, {7}, {}};
const std::vector<std::vector<int64_t>> kLargeShapes = {{48, 96}, {3}};

std::vector<at::Tensor> Ones(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<at::Tensor> parameters;
  for (const auto& shape : shapes) {
    parameters.push_back(at::full(shape, 1.0f).set_requires_grad(true));
  }
  return parameters;
}

// As make_state_dicts.gradient in Python.
void Step(ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = at::arange(parameters[i].numel())
                                       .add(7 * step + 3 * static_cast<int64_t>(i))
                                       .remainder(11)
                                       .sub(5)
                                       .div(8)
                                       .reshape(parameters[i].sizes());
  }
  optimizer.step();
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Of the golden files, into another file system.
void Copy(const std::string& golden, Directory& directory, const std::string& name) {
  const auto file = directory.CreateFile(name);
  ASSERT_EQ(file.status(), absl::OkStatus());
  ASSERT_EQ((*file)->WriteAt(0, {BytesOf(kImports + golden)}), absl::OkStatus());
}

void ExpectClose(const StateDict& ours, const StateDict& theirs, double tolerance) {
  ASSERT_EQ(ours.state.size(), theirs.state.size());
  for (const auto& [index, values] : theirs.state) {
    for (const auto& [name, value] : values) {
      ASSERT_EQ(ours.state.at(index).count(name), 1u) << name;
      const at::Tensor& own = ours.state.at(index).at(name).toTensor();
      const at::Tensor& other =
          value.isTensor() ? value.toTensor() : at::full({}, value.toScalar(), own.options());
      EXPECT_EQ(own.sizes(), other.sizes()) << name;
      EXPECT_TRUE(at::allclose(own, other.to(own.scalar_type()), tolerance, tolerance))
          << index << " " << name;
    }
  }
}

struct Rule {
  const char* name;
  RuleOptions options;
};

std::vector<Rule> Rules() {
  return {{"adamw", RuleOptions("adamw")},
          {"adam", RuleOptions("adam").Set("amsgrad", true)},
          {"sgd", RuleOptions("sgd").Set("lr", 0.25).Set("momentum", 0.5)}};
}

TEST(StateDictFile, SavedAndLoaded_HasTheSameBits) {
  FakeFileSystem system;
  const at::Tensor strided = at::arange(12, at::kFloat).reshape({3, 4}).t();
  StateDict dict;
  dict.state[0] = {{"exp_avg", strided}, {"step", at::full({}, 3.0)}, {"eta", 0.25}};
  dict.state[2] = {{"codes", at::arange(5, at::kChar)}, {"half", at::full({2}, 0.1, at::kHalf)}};
  dict.param_groups = {{{{"betas", c10::ivalue::Tuple::create({0.9, 0.999})},
                         {"lr", 1e-3},
                         {"ns_steps", int64_t{5}},
                         {"foreach", c10::IValue()},
                         {"maximize", false},
                         {"adjust_lr_fn", "original"},
                         {"param_names", c10::List<std::string>({"a", "b"})}},
                        {0, 1}},
                       {{{"lr", 0.5}}, {2}}};
  for (const char* const path : {"/state.pt", "/state.safetensors"}) {
    SCOPED_TRACE(path);
    ASSERT_EQ(SaveStateDict(system, dict, path), absl::OkStatus());
    const auto read = LoadStateDict(system, path);
    ASSERT_EQ(read.status(), absl::OkStatus());
    std::vector<std::string> lines = DigestLines(*read);
    EXPECT_EQ(lines, DigestLines(dict));
  }
}

TEST(StateDictFile, OfPyTorch_IsLoadedByTheRule_AndGoesOnAsThereSaved) {
  for (const Rule& rule : Rules()) {
    SCOPED_TRACE(rule.name);
    const auto loaded = LoadStateDict(absl::StrCat(kImports, rule.name, ".pt"));
    ASSERT_EQ(loaded.status(), absl::OkStatus());
    ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
      const std::vector<at::Tensor> parameters = Ones(kShapes);
      ShardedOptimizer optimizer(parameters, rule.options, options);
      Step(optimizer, parameters, 1);
      Step(optimizer, parameters, 2);
      optimizer.consolidate_state_dict(-1);
      ExpectClose(optimizer.state_dict(), *loaded, 1e-6);
      optimizer.load_state_dict(*loaded);
      optimizer.consolidate_state_dict(-1);
      ExpectClose(optimizer.state_dict(), *loaded, 0);
      optimizer.Close();
    }));
  }
}

TEST(StateDictFile, OfZeroRedundancyOptimizerAndOss_IsTheOneOfPyTorch) {
  const auto expected = LoadStateDict(absl::StrCat(kImports, "adamw.pt"));
  ASSERT_EQ(expected.status(), absl::OkStatus());
  for (const char* const name : {"zero.pt", "oss.pt"}) {
    const auto read = LoadStateDict(absl::StrCat(kImports, name));
    ASSERT_EQ(read.status(), absl::OkStatus()) << name;
    EXPECT_EQ(DigestLines(*read), DigestLines(*expected)) << name;
  }
}

// The golden files are those that golden/check_exports.py has seen PyTorch load and step with.
TEST(StateDictFile, OfOurs_IsTheFileThatPyTorchHasLoaded) {
  for (const Rule& rule : Rules()) {
    SCOPED_TRACE(rule.name);
    ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
      const std::vector<at::Tensor> parameters = Ones(kShapes);
      ShardedOptimizer optimizer(parameters, rule.options, options);
      Step(optimizer, parameters, 1);
      Step(optimizer, parameters, 2);
      optimizer.consolidate_state_dict(0);
      if (options.rank == 0) {
        for (const char* const ending : {".pt", ".safetensors"}) {
          const std::string name = absl::StrCat(rule.name, ending);
          const std::string path = absl::StrCat(::testing::TempDir(), name);
          EXPECT_EQ(SaveStateDict(optimizer.state_dict(), path), absl::OkStatus());
          EXPECT_TRUE(BytesOf(path) == BytesOf(kExports + name))
              << path << " is not " << kExports << name
              << ": copy it there (with --sandbox_debug it stays) and run check_exports.py";
        }
      }
      optimizer.Close();
    }));
  }
}

TEST(StateDictFile, OfBitsAndBytes_HasItsValues) {
  FakeFileSystem system;
  Copy("bitsandbytes_float.pt", *system.OpenDirectory("/").value(), "f");
  const auto all = StateFile::Open(system, "/f");
  ASSERT_EQ(all.status(), absl::OkStatus());
  const FileValue& exact = (*all)->document().value;
  for (const bool large : {false, true}) {
    SCOPED_TRACE(large);
    const auto dict =
        LoadStateDict(absl::StrCat(kImports, large ? "bitsandbytes_2048.pt" : "bitsandbytes.pt"));
    ASSERT_EQ(dict.status(), absl::OkStatus());
    for (int64_t index = 0; index < 2; ++index) {
      const FileValue& slots = exact.elements[static_cast<size_t>(2 * index + 1)];
      for (const std::string& name : {std::string("exp_avg"), std::string("exp_avg_sq")}) {
        const FileValue* expected = slots.Find(large ? name + "_2048" : name);
        if (expected == nullptr) expected = slots.Find(name);
        const at::Tensor values = *ReadTensor(**all, static_cast<size_t>(expected->whole));
        const at::Tensor& read = dict->state.at(index).at(name).toTensor();
        EXPECT_EQ(read.sizes(), at::IntArrayRef(kLargeShapes[static_cast<size_t>(index)]));
        EXPECT_TRUE(at::equal(read.reshape(-1).slice(0, 0, c10::nullopt, 97), values)) << name;
      }
    }
    ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
      const std::vector<at::Tensor> parameters = Ones(kLargeShapes);
      ShardedOptimizer optimizer(parameters, RuleOptions("adamw"), options);
      optimizer.load_state_dict(*dict);
      optimizer.consolidate_state_dict(-1);
      ExpectClose(optimizer.state_dict(), *dict, 0);
      optimizer.Close();
    }));
  }
}

TEST(StateDictFile, OfBitsAndBytes_ThatIsNotWhole_SaysWhatIsMissing) {
  const auto with = [](StateValues values) {
    StateDict dict;
    dict.state[3] = std::move(values);
    return FromBitsAndBytes(dict).status();
  };
  const at::Tensor codes = at::full({600}, 3, at::kByte);
  const at::Tensor map = at::full({256}, 0.5f);
  EXPECT_THAT(with({{"state1", codes}}).message(),
              AllOf(HasSubstr("state[3] of bitsandbytes"), HasSubstr("\"qmap1\"")));
  EXPECT_THAT(with({{"state1", codes}, {"qmap1", map}, {"absmax1", at::full({2}, 1.0f)}}).message(),
              HasSubstr("has 2 scales of 600 codes"));
  EXPECT_THAT(with({{"state1", at::full({3}, 1.0f)}}).message(),
              HasSubstr("has no tensor \"state2\""));
}

TEST(StateDictFile, OfDeepSpeed_IsTheOneOfPyTorch) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  ASSERT_EQ(root->CreateDirectory("zero"), absl::OkStatus());
  const auto zero = root->OpenDirectory("zero").value();
  for (const std::string& parameter :
       {std::string("layers.0.weight"), std::string("layers.1.weight")}) {
    ASSERT_EQ(zero->CreateDirectory(parameter), absl::OkStatus());
    const auto directory = zero->OpenDirectory(parameter).value();
    for (const char* const name : {"exp_avg.pt", "exp_avg_sq.pt", "fp32.pt", "step.pt"}) {
      Copy(absl::StrCat("universal/zero/", parameter, "/", name), *directory, name);
    }
  }
  const auto read = LoadDeepSpeedUniversal(system, "/", {{"layers.0.weight"}, {"layers.1.weight"}});
  ASSERT_EQ(read.status(), absl::OkStatus());
  const auto expected = LoadStateDict(absl::StrCat(kImports, "adamw.pt"));
  for (int64_t index = 0; index < 2; ++index) {
    for (const char* const name : {"exp_avg", "exp_avg_sq", "step"}) {
      EXPECT_TRUE(at::equal(read->dict.state.at(index).at(name).toTensor(),
                            expected->state.at(index).at(name).toTensor()))
          << name;
    }
  }
  EXPECT_THAT(read->dict.param_groups[1].params, ElementsAre(1));
  EXPECT_EQ(read->parameters.at("layers.1.weight").sizes(), at::IntArrayRef({6, 20}));
  EXPECT_TRUE(absl::IsNotFound(LoadDeepSpeedUniversal(system, "/", {{"other"}}).status()));
}

TEST(StateDictFile, AFileOfSomethingElse_SaysWhatItHas) {
  EXPECT_THAT(LoadStateDict(absl::StrCat(kImports, "universal/zero/layers.0.weight/exp_avg.pt"))
                  .status()
                  .message(),
              AllOf(HasSubstr("has no state dict of an optimizer"), HasSubstr("\"cat_dim\""),
                    HasSubstr("give the key")));
  EXPECT_THAT(LoadStateDict(absl::StrCat(kImports, "adamw.pt"), "optimizer").status().message(),
              HasSubstr("under \"optimizer\" there is nothing"));
  EXPECT_TRUE(absl::IsNotFound(LoadStateDict(absl::StrCat(kImports, "none.pt")).status()));
  StateDict dict;
  dict.state[0] = {{"x", at::empty({2}, at::kComplexFloat)}};
  FakeFileSystem fake;
  EXPECT_THAT(SaveStateDict(fake, dict, "/x.pt").message(),
              AllOf(HasSubstr("state[0][\"x\"]"), HasSubstr("of real numbers")));
}

}  // namespace
}  // namespace optshard
