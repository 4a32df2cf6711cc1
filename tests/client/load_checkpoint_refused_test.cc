// Checkpoints that cannot be loaded: each is refused on all ranks, and nothing changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "server/checkpoint/block_checksums.h"
#include "tests/client/checkpoint_trainer.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::Adam;
using testing::CheckpointTrainer;
using testing::Edit;
using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using testing::kRanks;
using testing::Model;
using testing::Parameter;
using testing::RunRanks;
using testing::Save;

TEST(LoadCheckpointTest, CheckpointOfAnotherOptimizer_NamesTheFirstDifferenceAndChangesNothing) {
  struct Case {
    std::function<void(Model&)> change;
    std::string said;
  };
  const std::vector<Case> cases = {
      {[](Model& model) { model.shapes[1] = {4}; },
       "the shape of parameter \"b\" is [4] in the checkpoint, expected [3]; 2 of its 3 parameters "
       "fit: \"a\", \"c\"."},
      {[](Model& model) { model.names[2] = "other"; },
       "parameter \"c\" is not in the checkpoint; 2 of its 3 parameters fit: \"a\", \"b\"."},
      {[](Model& model) {
         model.names.emplace_back("d");
         model.shapes.push_back({5});
       },
       "parameter \"d\" of the checkpoint is not the optimizer's; 3 of its 3 parameters fit: "
       "\"a\", \"b\", \"c\"."},
      {[](Model& model) { model.type = at::kDouble; },
       "the type of parameter \"a\" is float64 in the checkpoint, expected float32"},
      {[](Model& model) { model.first_group = 1; },
       "the param group of parameter \"b\" is 1 in the checkpoint, expected 0"},
      {[](Model& model) { model.first_group = 0; },
       "the number of param groups is 1 in the checkpoint, expected 2"},
      {[](Model& model) { model.rule = RuleOptions("adamw"); },
       "the rule of param group 0 is \"adamw\" in the checkpoint, expected \"adam\"; 0 of its 3 "
       "parameters fit."},
      {[](Model& model) { model.rule = Adam().Set("amsgrad", true); },
       "has the slot \"max_exp_avg_sq\" in the checkpoint, and none here"},
      {[](Model& model) { model.state_dtype = "int8_dynamic"; },
       "the slot \"exp_avg\" of parameter \"a\" is int8_dynamic_signed in the checkpoint, "
       "expected float32; 2 of its 3 parameters fit: \"b\", \"c\"."},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.said);
    Model other;
    each.change(other);
    ExpectRefused(Save(other), "", absl::StatusCode::kInvalidArgument,
                  {each.said, "rank 0: ", "step-000000000002"});
  }
}

// The other way round, of what is only here.
TEST(LoadCheckpointTest, SlotThatTheCheckpointLacks_IsNamed) {
  Model masters;
  masters.type = at::kBFloat16;
  const std::string root = Save(masters);
  masters.master_weights = true;
  ExpectRefused(root, "", absl::StatusCode::kInvalidArgument,
                {"parameter \"a\" has no slot \"master\" there; 0 of its 3"}, masters);
}

// And gives it a checksum that is right.
void EditManifest(const std::string& directory, const std::string& from, const std::string& to) {
  Edit(absl::StrCat(directory, "/manifest.json"), [&](std::string& text) {
    const std::string key = "\"checkpoint\": ";
    std::string body = text.substr(text.find(key) + key.size());
    ASSERT_NE(body.find(from), std::string::npos) << from << " in " << body;
    body.replace(body.find(from), from.size(), to);
    text =
        absl::StrCat("{\"checksum\": \"xxh3:", ChecksumText(ChecksumOf(body)), "\", ", key, body);
  });
}

TEST(LoadCheckpointTest, DamagedCheckpoint_IsNamedByFileTensorAndBytesOnAllRanks) {
  struct Case {
    std::function<void(const std::string& directory)> spoil;
    absl::StatusCode code;
    std::vector<std::string> said;
  };
  const std::string last = "/owner-00001.safetensors";
  const std::vector<Case> cases = {
      {[&](const std::string& at) {
         Edit(at + last, [](std::string& bytes) { bytes[bytes.size() - 3] ^= 1; });
       },
       absl::StatusCode::kDataLoss,
       {"owner-00001.safetensors", "trainer_blob", "bytes"}},
      {[&](const std::string& at) {
         // The last bytes before the blob.
         Edit(at + last, [](std::string& bytes) { bytes[bytes.size() - 200] ^= 1; });
       },
       absl::StatusCode::kDataLoss,
       {"owner-00001.safetensors", "/", "bytes"}},
      {[&](const std::string& at) {
         Edit(at + last, [](std::string& bytes) { bytes.resize(bytes.size() / 2); });
       },
       absl::StatusCode::kDataLoss,
       {"owner-00001.safetensors"}},
      {[&](const std::string& at) { std::filesystem::remove(at + last); },
       absl::StatusCode::kDataLoss,
       {"owner-00001.safetensors"}},
      {[&](const std::string& at) {
         std::filesystem::rename(at + last, at + "/moved");
         std::filesystem::create_symlink(at + "/moved", at + last);
       },
       absl::StatusCode::kFailedPrecondition,
       {"owner-00001.safetensors"}},
      {[](const std::string& at) {
         Edit(at + "/manifest.json", [](std::string& text) { text[text.size() / 2] ^= 1; });
       },
       absl::StatusCode::kDataLoss,
       {"manifest.json"}},
      {[](const std::string& at) {
         EditManifest(at, "\"format_version\": 1", "\"format_version\": 2");
       },
       absl::StatusCode::kFailedPrecondition,
       {"manifest.json", "2"}},
      {[](const std::string& at) { EditManifest(at, "\"step\": 2", "\"step\": 3"); },
       absl::StatusCode::kDataLoss,
       {"step-000000000002 has a manifest of step 3"}},
      {[](const std::string& at) { EditManifest(at, "\"steps\":2", "\"steps\":9007199254740992"); },
       absl::StatusCode::kInvalidArgument,
       {"counts 9007199254740992 steps"}},
      {[](const std::string& at) { std::filesystem::remove(at + "/manifest.json"); },
       absl::StatusCode::kNotFound,
       {"is no committed checkpoint"}},
  };
  const std::string root = Save(Model());
  const std::string name = "step-000000000002";
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string copy = testing::NewCheckpointRoot();
    std::filesystem::copy(root, copy, std::filesystem::copy_options::recursive);
    cases[i].spoil(absl::StrCat(copy, "/", name));
    ExpectRefused(copy, name, cases[i].code, cases[i].said);
  }
}

TEST(LoadCheckpointTest, NoCheckpoint_IsSaidWithWhatThereIs) {
  const std::string root = testing::NewCheckpointRoot();
  ExpectRefused(root, "", absl::StatusCode::kNotFound,
                {"has no checkpoint of job \"optshard\", optimizer \"default\""});
  ExpectRefused(root, "step-000000000009", absl::StatusCode::kNotFound, {"step-000000000009"});
  ExpectRefused(absl::StrCat(root, "/none"), "", absl::StatusCode::kNotFound, {"/none"});
  ExpectRefused(root, "../elsewhere", absl::StatusCode::kInvalidArgument, {"../elsewhere"});
  Model other;
  other.optimizer = "another";
  Save(other, {2}, kRanks, root);
  ExpectRefused(root, "", absl::StatusCode::kNotFound,
                {"there are those of: job \"optshard\", optimizer \"another\""});
}

TEST(LoadCheckpointTest, RanksThatDoNotAgree_AreToldWhat) {
  const std::string root = Save(Model(), {1, 2});
  const std::string other_root = Save(Model(), {1});
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    const bool first = options.rank == 0;
    absl::Status error = ErrorOf([&] {
      trainer.optimizer().load_checkpoint(root, first ? "step-000000000001" : "step-000000000002");
    });
    EXPECT_TRUE(errors::IsRanksDisagree(error)) << error;
    EXPECT_THAT(errors::RanksOf(error), ElementsAre(1));
    EXPECT_THAT(error.ToString(), HasSubstr("the name of the checkpoint"));
    error = ErrorOf([&] {
      trainer.optimizer().load_checkpoint(first ? root : other_root, "step-000000000001");
    });
    EXPECT_TRUE(errors::IsRanksDisagree(error)) << error;
    EXPECT_THAT(error.ToString(), HasSubstr("the manifest of the checkpoint"));
    trainer.StepTo(1);
    trainer.optimizer().Close();
  }));
}

TEST(LoadCheckpointTest, TensorThatHasBecomeAnother_IsRefusedOnAllRanksBeforeAnythingChanges) {
  const std::string root = Save(Model());
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    const at::Tensor tensor = trainer.parameters()[1];
    const at::Tensor values = tensor.detach();
    if (options.rank == 1) tensor.set_data(values.to(at::kDouble));
    const absl::Status error = ErrorOf([&] { trainer.optimizer().load_checkpoint(root); });
    EXPECT_THAT(error.ToString(), HasSubstr("rank 1: parameter \"b\" has become Double"));
    if (options.rank == 1) tensor.set_data(values);
    trainer.StepTo(1);
    EXPECT_EQ(trainer.optimizer().finished_step(), 1u);
    trainer.optimizer().Close();
  }));
}

TEST(LoadCheckpointTest, OptimizerClasses_KeepTheirStateToThemselves) {
  const std::string root = Save(Model());
  ExpectAllOk(RunRanks(1, [&](const ShardedOptimizerOptions& options) {
    class MyOptions : public torch::optim::OptimizerCloneableOptions<MyOptions> {};
    class Mine : public torch::optim::Optimizer {
     public:
      using Optimizer::Optimizer;
      at::Tensor step(LossClosure) override { return {}; }
    };
    const auto make = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<Mine>(std::move(parameters), std::make_unique<MyOptions>());
    };
    ShardedOptimizer optimizer({Parameter({3}, 1)}, RuleOptions("mine", make), options);
    const absl::Status error = ErrorOf([&] { optimizer.load_checkpoint(root); });
    EXPECT_TRUE(absl::IsUnimplemented(error)) << error;
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
