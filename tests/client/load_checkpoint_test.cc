// Checkpoints that are loaded: which one, what is taken of it, and what is refused.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/checkpoint_directory.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/errors.h"
#include "server/checkpoint/block_checksums.h"
#include "tests/client/attached_options.h"
#include "tests/client/state_lines.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExpectAllOk;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::WrittenCheckpoint;

constexpr int kRanks = 2;

RuleOptions Adam() { return RuleOptions("adam").Set("lr", 0.25); }

// What a checkpoint is of, and what it is loaded into.
struct Model {
  std::vector<std::string> names = {"a", "b", "c"};
  std::vector<std::vector<int64_t>> shapes = {{4096}, {3}, {2}};
  at::ScalarType type = at::kFloat;
  size_t first_group = 2;  // so many parameters; 0: there is one group
  RuleOptions rule = Adam();
  std::string state_dtype = "float32";
  bool master_weights = false;
  std::string optimizer = "default";
};

// One rank's part of a job.
class Trainer {
 public:
  Trainer(const Model& model, ShardedOptimizerOptions options) {
    for (const auto& shape : model.shapes) {
      parameters_.push_back(
          at::full(shape, 1, at::TensorOptions(model.type)).set_requires_grad(true));
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const size_t first = model.first_group == 0 ? parameters_.size() : model.first_group;
    groups.emplace_back(std::vector<at::Tensor>(parameters_.begin(), parameters_.begin() + first));
    if (first < parameters_.size()) {
      groups.emplace_back(std::vector<at::Tensor>(parameters_.begin() + first, parameters_.end()));
    }
    options.policy = PartitionPolicy::kBalanced;
    options.parameter_names = model.names;
    options.state_dtype = model.state_dtype;
    options.master_weights = model.master_weights;
    options.optimizer = model.optimizer;
    optimizer_ = std::make_unique<ShardedOptimizer>(groups, model.rule, options);
  }

  void Step() {
    ++steps_;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const double gradient = 0.5 + 0.125 * static_cast<double>((size_t{5} * steps_ + i) % 7);
      parameters_[i].mutable_grad() =
          at::full(parameters_[i].sizes(), gradient, parameters_[i].options());
    }
    optimizer_->step();
  }
  void StepTo(int last) {
    while (steps_ < last) Step();
  }
  // Which gradients come next.
  void SetSteps(int steps) { steps_ = steps; }

  // Everything that a step depends on.
  std::vector<std::string> State() {
    std::vector<std::string> lines = testing::StateLines(*optimizer_, parameters_);
    lines.push_back(absl::StrCat("step ", optimizer_->finished_step()));
    return lines;
  }

  ShardedOptimizer& optimizer() { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  int steps_ = 0;
};

// Trains `steps` steps, and writes checkpoints after those in `saved`. The root.
std::string Save(const Model& model, const std::vector<int>& saved = {2}, int ranks = kRanks,
                 const std::string& root = testing::NewCheckpointRoot()) {
  std::vector<std::unique_ptr<WrittenCheckpoint>> checkpoints;
  for (size_t i = 0; i < saved.size(); ++i) {
    checkpoints.push_back(std::make_unique<WrittenCheckpoint>(root));
  }
  ExpectAllOk(RunRanks(ranks, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(model, options);
    for (size_t i = 0; i < saved.size(); ++i) {
      trainer.StepTo(saved[i]);
      checkpoints[i]->WriteShare(trainer.optimizer(), trainer.parameters(),
                                 absl::StrCat("rank ", options.rank, ", step ", saved[i]));
    }
    trainer.optimizer().Close();
  }));
  for (const auto& each : checkpoints) each->Commit();
  return root;
}

// What uninterrupted training has after so many steps.
std::vector<std::string> StateAfter(int steps) {
  std::vector<std::string> state;
  ExpectAllOk(RunRanks(1, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Model(), options);
    trainer.StepTo(steps);
    state = trainer.State();
    trainer.optimizer().Close();
  }));
  return state;
}

// On every rank: the call fails like this, nothing changes, and training goes on.
void ExpectRefused(const std::string& root, const std::string& name, absl::StatusCode code,
                   const std::vector<std::string>& said, const Model& model = Model()) {
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(model, options);
    trainer.StepTo(1);
    const std::vector<std::string> before = trainer.State();
    const absl::Status error = ErrorOf([&] { trainer.optimizer().load_checkpoint(root, name); });
    EXPECT_EQ(error.code(), code) << error;
    for (const std::string& each : said) EXPECT_THAT(error.ToString(), HasSubstr(each));
    EXPECT_EQ(trainer.State(), before);
    trainer.StepTo(3);
    EXPECT_EQ(trainer.optimizer().finished_step(), 3u);
    trainer.optimizer().Close();
  }));
}

// --- What cannot be loaded.

TEST(LoadCheckpointTest, CheckpointOfAnotherOptimizer_NamesTheFirstDifferenceAndChangesNothing) {
  struct Case {
    std::function<void(Model&)> change;
    std::string said;
  };
  const std::vector<Case> cases = {
      {[](Model& model) { model.shapes[1] = {4}; },
       "the shape of parameter \"b\" is [4] in the checkpoint, expected [3]; 2 of its 3"},
      {[](Model& model) { model.names[2] = "other"; },
       "parameter \"c\" is not in the checkpoint; 2 of its 3 parameters fit"},
      {[](Model& model) {
         model.names.emplace_back("d");
         model.shapes.push_back({5});
       },
       "parameter \"d\" of the checkpoint is not the optimizer's; 3 of its 3"},
      {[](Model& model) { model.type = at::kDouble; },
       "the type of parameter \"a\" is float64 in the checkpoint, expected float32"},
      {[](Model& model) { model.first_group = 1; },
       "the param group of parameter \"b\" is 1 in the checkpoint, expected 0"},
      {[](Model& model) { model.first_group = 0; },
       "the number of param groups is 1 in the checkpoint, expected 2"},
      {[](Model& model) { model.rule = RuleOptions("adamw"); },
       "the rule of param group 0 is \"adamw\" in the checkpoint, expected \"adam\""},
      {[](Model& model) { model.rule = Adam().Set("amsgrad", true); },
       "has the slot \"max_exp_avg_sq\" in the checkpoint, and none here"},
      {[](Model& model) { model.state_dtype = "int8_dynamic"; },
       "the slot \"exp_avg\" of parameter \"a\" is int8_dynamic_signed in the checkpoint, "
       "expected float32; 2 of its 3"},
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

void Edit(const std::string& path, const std::function<void(std::string&)>& change) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(bytes.empty()) << path;
  change(bytes);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
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
    Trainer trainer(Model(), options);
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
    Trainer trainer(Model(), options);
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

// --- What is loaded.

TEST(LoadCheckpointTest, Newest_GivesStepOptionsAndThisRanksBlob) {
  const std::string root = Save(Model(), {1, 2});
  Model other;
  other.optimizer = "another";
  Save(other, {3}, kRanks, root);
  std::filesystem::create_directories(absl::StrCat(root, "/step-000000000007"));
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Model model;
    model.rule = Adam().Set("lr", 8.0);
    Trainer trainer(model, options);
    EXPECT_EQ(CheckpointDirectory(root, trainer.optimizer().options()).newest(),
              "step-000000000002");
    auto& group = trainer.optimizer().param_groups()[1].options();
    const LoadedCheckpoint loaded = trainer.optimizer().load_checkpoint(root);
    EXPECT_EQ(loaded.name, "step-000000000002");
    EXPECT_EQ(loaded.passed_over, "");
    EXPECT_EQ(loaded.step, 2u);
    EXPECT_EQ(loaded.world_size, kRanks);
    EXPECT_EQ(trainer.optimizer().finished_step(), 2u);
    EXPECT_EQ(trainer.optimizer().blob(), absl::StrCat("rank ", options.rank, ", step 2"));
    EXPECT_EQ(group.get_lr(), 0.25);
    trainer.SetSteps(2);
    trainer.Step();
    EXPECT_EQ(trainer.optimizer().last_step().step, 3u);
    EXPECT_EQ(trainer.State(), StateAfter(3));
    trainer.optimizer().Close();
  }));
}

// Which part of what rank 1 has saved is not as it was.
void DamageFromTheEnd(const std::string& root, const std::string& name, size_t bytes) {
  Edit(absl::StrCat(root, "/", name, "/owner-00001.safetensors"),
       [&](std::string& text) { text[text.size() - bytes] ^= 1; });
}

// Only whoever reads the bytes finds that out: the one in a tensor, the other in a blob.
TEST(LoadCheckpointTest, NewestWithDamageInside_IsPassedOverAndNamed) {
  const std::string root = Save(Model(), {1, 2, 3});
  DamageFromTheEnd(root, "step-000000000003", 200);
  DamageFromTheEnd(root, "step-000000000002", 3);
  const std::vector<std::string> expected = StateAfter(4);
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Model(), options);
    const LoadedCheckpoint loaded = trainer.optimizer().load_checkpoint(root);
    EXPECT_EQ(loaded.name, "step-000000000001");
    EXPECT_EQ(loaded.step, 1u);
    for (const char* const said : {"step-000000000003: rank 1: ", "step-000000000002: rank 1: ",
                                   "owner-00001.safetensors", "trainer_blob", "bytes"}) {
      EXPECT_THAT(loaded.passed_over, HasSubstr(said));
    }
    EXPECT_EQ(trainer.optimizer().blob(), absl::StrCat("rank ", options.rank, ", step 1"));
    trainer.SetSteps(1);
    trainer.StepTo(4);
    EXPECT_EQ(trainer.State(), expected);
    trainer.optimizer().Close();
  }));
}

TEST(LoadCheckpointTest, AllWithDamageInside_AreNamedAndNothingChanges) {
  const std::string root = Save(Model(), {1, 2});
  for (const char* const name : {"step-000000000001", "step-000000000002"}) {
    DamageFromTheEnd(root, name, 200);
  }
  ExpectRefused(root, "", absl::StatusCode::kDataLoss,
                {"no checkpoint of job \"optshard\", optimizer \"default\" that can be loaded",
                 "step-000000000001: rank 1", "step-000000000002: rank 1",
                 "owner-00001.safetensors", "bytes"});
}

// The blob of a damaged one, which this rank could read, does not stay.
TEST(LoadCheckpointTest, BlobOfOneThatIsPassedOver_IsForgotten) {
  const std::string root = Save(Model(), {1}, 3);
  Save(Model(), {2}, kRanks, root);
  DamageFromTheEnd(root, "step-000000000002", 3);
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Model(), options);
    EXPECT_EQ(trainer.optimizer().load_checkpoint(root).world_size, 3);
    EXPECT_EQ(trainer.optimizer().blob(), "");
    trainer.optimizer().Close();
  }));
}

TEST(LoadCheckpointTest, AtAnotherNumberOfRanks_AllBlobsCanBeHad) {
  const std::string root = Save(Model(), {2}, 3);
  ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Model(), options);
    const LoadedCheckpoint loaded = trainer.optimizer().load_checkpoint(root);
    EXPECT_EQ(loaded.world_size, 3);
    EXPECT_EQ(trainer.optimizer().blob(), "");
    EXPECT_THAT(CheckpointDirectory(root, options).blobs(loaded.name),
                ElementsAre("rank 0, step 2", "rank 1, step 2", "rank 2, step 2"));
    trainer.optimizer().Close();
  }));
}

TEST(CheckpointDirectoryTest, Nothing_WhereNoCheckpointIs) {
  const std::string root = testing::NewCheckpointRoot();
  const ShardedOptimizerOptions options;
  EXPECT_EQ(CheckpointDirectory(root, options).newest(), absl::nullopt);
  EXPECT_EQ(CheckpointDirectory(absl::StrCat(root, "/none"), options).newest(), absl::nullopt);
}

TEST(LoadCheckpointTest, ParametersInAnotherOrder_AreFoundByTheirNames) {
  Model other;
  std::swap(other.names[0], other.names[1]);
  std::swap(other.shapes[0], other.shapes[1]);
  const std::string root = Save(Model());
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(other, options);
    trainer.optimizer().load_checkpoint(root);
    trainer.optimizer().consolidate_state_dict(-1);
    const StateDict dict = trainer.optimizer().state_dict();
    EXPECT_EQ(dict.state.at(1).at("exp_avg").toTensor().numel(), 4096);
    EXPECT_EQ(trainer.optimizer().finished_step(), 2u);
    trainer.optimizer().Close();
  }));
}

// Backwards and forwards, with calls that are skipped in between; embedded and at a server.
TEST(LoadCheckpointTest, WhileAJobTrains_GoesOnFromThereWithTheSameBits) {
  const std::string root = Save(Model(), {2, 4});
  const std::vector<std::string> expected = StateAfter(6);
  const auto body = [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(Model(), options);
    trainer.StepTo(3);
    for (const char* const name : {"step-000000000002", "step-000000000004"}) {
      trainer.optimizer().zero_grad();
      trainer.optimizer().step();  // is skipped
      trainer.optimizer().load_checkpoint(root, name);
      trainer.SetSteps(static_cast<int>(trainer.optimizer().finished_step()));
      trainer.optimizer().set_blob("the next one");
      trainer.StepTo(6);
      EXPECT_EQ(trainer.State(), expected);
    }
    trainer.optimizer().Close();
  };
  ExpectAllOk(RunRanks(kRanks, body));
  ExpectAllOk(testing::RunAttached(kRanks, body));
  ExpectAllOk(testing::RunRanksOfOneHost(kRanks, body).thrown);
}

// A trainer that succeeds one which has loaded finds the checkpoint's step and blob.
TEST(LoadCheckpointTest, SuccessorAtAServer_GoesOnAfterTheLoadedStep) {
  const std::string root = Save(Model(), {2, 5});
  testing::NodeRig rig(kRanks);
  rig.OnEveryRank([&](Rank rank) {
    ShardedOptimizerOptions options = testing::AttachedTo(rig, rank);
    options.wait_for_trainers = true;
    auto trainer = std::make_unique<Trainer>(Model(), options);
    trainer->optimizer().set_blob("of a step that comes again");
    trainer->StepTo(4);
    trainer->optimizer().load_checkpoint(root, "step-000000000002");
    trainer->optimizer().Close();
    trainer = std::make_unique<Trainer>(Model(), options);
    EXPECT_EQ(trainer->optimizer().finished_step(), 2u);
    EXPECT_EQ(trainer->optimizer().blob(), absl::StrCat("rank ", rank, ", step 2"));
    trainer->SetSteps(2);
    trainer->StepTo(5);
    EXPECT_EQ(trainer->State(), StateAfter(5));
  });
}

}  // namespace
}  // namespace optshard
