// The program optshard-checkpoint, over checkpoints on a disk.
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/state_file/file_value.h"
#include "server/checkpoint/state_file/state_file.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/command.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::Command;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::SavedModel;

constexpr absl::Duration kPatience = absl::Seconds(60);

class CheckpointProgram : public ::testing::Test {
 protected:
  CheckpointProgram() {
    directory_ = absl::StrCat(::testing::TempDir(), "/checkpoints.XXXXXX");
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    auto root = PosixFileSystem().OpenDirectory(directory_).value();
    for (const StepNumber step : {1, 2, 3}) {
      EXPECT_EQ(SavedModel(step).Save(*root, 2, PartitionPolicy::kBalanced).status(),
                absl::OkStatus());
    }
  }

  // Its output, and its exit code in `code_`.
  std::string Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), Command::Runfile("server/checkpoint/optshard-checkpoint"));
    Command command(arguments);
    const auto code = command.Wait(absl::Now() + kPatience);
    EXPECT_EQ(code.status(), absl::OkStatus());
    code_ = code.value_or(-1);
    return command.output();
  }

  std::string directory_;
  int code_ = -1;
};

TEST_F(CheckpointProgram, ListShowAndVerify_SayWhatThereIs) {
  EXPECT_THAT(Run({"list", directory_}),
              AllOf(HasSubstr("step-000000000003        committed          2   "),
                    HasSubstr("2023-11-14T22:13:20Z"), HasSubstr("step-000000000001")));
  EXPECT_EQ(code_, 0);
  const std::string shown = Run({"show", directory_});
  EXPECT_THAT(shown, AllOf(HasSubstr("step-000000000003: step 3 of job \"digits\""),
                           HasSubstr("saved 2023-11-14T22:13:20Z by 2 ranks, generation 3"),
                           HasSubstr("group 0: adam amsgrad=false betas=[0.9, 0.999] lr=0.001"),
                           HasSubstr("  fc.weight  float32 [3, 700]  3 steps  exp_avg float32  "
                                     "exp_avg_sq bfloat16"),
                           HasSubstr("exp_avg_sq_row float32 [7]")));
  EXPECT_EQ(code_, 0);
  EXPECT_THAT(Run({"verify", directory_}), HasSubstr("step-000000000001: whole\n"));
  EXPECT_EQ(code_, 0);
}

TEST_F(CheckpointProgram, Verify_OfADamagedOne_NamesThePlaceAndEndsWithOne) {
  std::fstream file(absl::StrCat(directory_, "/step-000000000002/owner-00001.safetensors"),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put('?');
  file.close();
  EXPECT_THAT(Run({"verify", directory_, "step-000000000002"}),
              AllOf(HasSubstr("owner-00001.safetensors is damaged: tensor \""),
                    HasSubstr("of the file: their checksum is ")));
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(Run({"verify", directory_, "step-000000000003"}), Not(HasSubstr("damaged")));
  EXPECT_EQ(code_, 0);
}

TEST_F(CheckpointProgram, Verify_OfAll_SaysWhatIsNoCheckpointAnyMore) {
  std::ofstream(absl::StrCat(directory_, "/step-000000000002/manifest.json")) << "{}";
  ASSERT_EQ(rename(absl::StrCat(directory_, "/step-000000000001").c_str(),
                   absl::StrCat(directory_, "/step-000000000009").c_str()),
            0);
  EXPECT_THAT(Run({"verify", directory_}),
              AllOf(HasSubstr("step-000000000003: whole\n"), HasSubstr("not the manifest of a"),
                    HasSubstr("step-000000000009: "), HasSubstr("was renamed")));
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(Run({"verify", directory_, "step-000000000009"}),
              AllOf(HasSubstr("has a checkpoint of step 1: its directory was renamed"),
                    Not(HasSubstr("whole"))));
  EXPECT_EQ(code_, 1);
}

TEST_F(CheckpointProgram, Prune_OfWhatCannotGo_GoesOnAndEndsWithOne) {
  const std::string stays = absl::StrCat(directory_, "/step-000000000002/kept");
  ASSERT_EQ(mkdir(stays.c_str(), 0755), 0);
  std::ofstream(stays + "/file") << "x";
  EXPECT_THAT(Run({"prune", directory_, "--keep-last=1"}),
              AllOf(HasSubstr("step-000000000002        failed"), HasSubstr("cannot remove "),
                    HasSubstr("step-000000000001        removed")));
  EXPECT_EQ(code_, 1);
}

TEST_F(CheckpointProgram, Prune_RemovesWhatItSays) {
  EXPECT_THAT(Run({"prune", directory_, "--keep-last=1", "--dry-run"}),
              HasSubstr("step-000000000002        would go  older than the newest 1"));
  EXPECT_THAT(Run({"list", directory_}), HasSubstr("step-000000000001"));
  EXPECT_THAT(Run({"prune", directory_, "--keep-last=1"}),
              AllOf(HasSubstr("step-000000000003        kept      the newest"),
                    HasSubstr("step-000000000001        removed")));
  EXPECT_EQ(code_, 0);
  EXPECT_THAT(Run({"list", directory_}),
              AllOf(HasSubstr("step-000000000003"), Not(HasSubstr("step-000000000001"))));
}

TEST_F(CheckpointProgram, Export_WritesFilesOfOtherPrograms) {
  ASSERT_EQ(mkdir(absl::StrCat(directory_, "/model").c_str(), 0700), 0);
  const std::string state = absl::StrCat(directory_, "/state.pt");
  const std::string model = absl::StrCat(directory_, "/model");
  EXPECT_THAT(Run({"export", directory_, absl::StrCat("--to=", state),
                   absl::StrCat("--model-to=", model), "--shard-bytes=10000"}),
              AllOf(HasSubstr(absl::StrCat("step-000000000003: ", state)),
                    HasSubstr(absl::StrCat("step-000000000003: ", model))));
  EXPECT_EQ(code_, 0);
  PosixFileSystem system;
  EXPECT_EQ(StateFile::Open(system, state).status(), absl::OkStatus());
  EXPECT_EQ(StateFile::Open(system, model + "/model-00001-of-00004.safetensors").status(),
            absl::OkStatus());
  EXPECT_THAT(Run({"export", directory_, "--to=state.onnx"}), HasSubstr("end it in .pt or"));
  EXPECT_EQ(code_, 1);
  Run({"export", directory_});
  EXPECT_EQ(code_, 2);
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// What PyTorch has saved comes in, goes out as several files, comes in again from those, and is the
// same then.
TEST_F(CheckpointProgram, Import_OfAStateAndAModel_AlsoOfSeveralFiles) {
  constexpr char kState[] = "tests/client/golden/imports/adamw.pt";
  const std::string folder = absl::StrCat(directory_, "/imports");
  for (const char* const name : {"", "/first", "/second", "/model", "/again"}) {
    ASSERT_EQ(mkdir(absl::StrCat(folder, name).c_str(), 0700), 0);
  }
  PosixFileSystem system;
  FileDocument model;
  model.value = FileValue::Dict();
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 3}, {6, 20}, {7}, {}}) {
    const size_t number = model.tensors.size();
    model.tensors.push_back(ContiguousTensor(TensorType::kF32, shape, number));
    model.value.Add(FileValue::Text(absl::StrCat("layer", number)), FileValue::Tensor(number));
  }
  const std::string values(1000, '7');
  const auto source = [&values](size_t, int64_t, int64_t bytes) {
    return absl::StatusOr<absl::string_view>(
        absl::string_view(values).substr(0, static_cast<size_t>(bytes)));
  };
  ASSERT_EQ(WriteStateFile(system, folder + "/model.pt", model, source), absl::OkStatus());
  EXPECT_THAT(Run({"import", folder + "/first", absl::StrCat("--from=", kState),
                   absl::StrCat("--model=", folder, "/model.pt"), "--rules=adamw"}),
              HasSubstr("step-000000000002: imported\n"));
  EXPECT_EQ(code_, 0);
  const auto exports = [&](const std::string& from, const std::string& to) {
    Run({"export", folder + from, absl::StrCat("--to=", folder, to, ".pt"),
         absl::StrCat("--model-to=", folder, to), "--shard-bytes=100"});
    EXPECT_EQ(code_, 0);
  };
  exports("/first", "/model");
  const std::string state = absl::StrCat("--from=", folder, "/model.pt");
  EXPECT_THAT(Run({"import", folder + "/second", state, absl::StrCat("--model=", folder, "/model"),
                   "--rules=adamw"}),
              HasSubstr("step-000000000002: imported\n"));
  EXPECT_EQ(code_, 0);
  exports("/second", "/again");
  EXPECT_EQ(BytesOf(folder + "/again.pt"), BytesOf(folder + "/model.pt"));
  for (const char* const name :
       {"/model-00001-of-00003.safetensors", "/model-00002-of-00003.safetensors",
        "/model-00003-of-00003.safetensors", "/model.safetensors.index.json"}) {
    EXPECT_EQ(BytesOf(absl::StrCat(folder, "/again", name)),
              BytesOf(absl::StrCat(folder, "/model", name)));
  }
  EXPECT_THAT(Run({"import", folder + "/second", state, absl::StrCat("--model=", folder, "/none"),
                   "--rules=adamw"}),
              HasSubstr("/none"));
  EXPECT_EQ(code_, 1);
}

TEST_F(CheckpointProgram, WrongArguments_EndWithAnError) {
  Run({"burn", directory_});
  EXPECT_EQ(code_, 2);
  for (const char* const command : {"list", "prune"}) {
    EXPECT_THAT(Run({command, directory_, "step-000000000001"}),
                HasSubstr(absl::StrCat(command, " takes no CHECKPOINT, and there is step-")));
    EXPECT_EQ(code_, 2);
  }
  Run({"list"});
  EXPECT_EQ(code_, 2);
  Run({"list", absl::StrCat(directory_, "/none")});
  EXPECT_EQ(code_, 1);
  Run({"show", directory_, "step-000000000009"});
  EXPECT_EQ(code_, 1);
  Run({"verify", directory_, "../.."});
  EXPECT_EQ(code_, 1);
}

}  // namespace
}  // namespace optshard
