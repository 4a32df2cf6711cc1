// Models that owners write together, also where the disk fails.
#include "server/checkpoint/model_export.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/partition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "tests/server/checkpoint/crashes.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/fake_file_system.h"
#include "tests/testing/files_in.h"

namespace optshard {
namespace {

using testing::FakeFileSystem;
using ::testing::HasSubstr;
using testing::SavedModel;
using Files = std::map<std::string, std::string>;
using Unsynced = FakeFileSystem::Unsynced;

constexpr StepNumber kStep = 20;
constexpr int64_t kShardBytes = 10'000;
constexpr int kOwners = 2;

std::vector<CheckpointParameter> Parameters() {
  return SavedModel(kStep).Description(1, PartitionPolicy::kGreedy).parameters;
}

ModelLayout Layout(int64_t shard_bytes = kShardBytes) {
  return LayOutModel(ModelTensorsOf(Parameters()), shard_bytes).value();
}

// As coordinator and owners do it.
absl::Status Export(FakeFileSystem& system, int owners = kOwners,
                    PartitionPolicy policy = PartitionPolicy::kBalanced,
                    int64_t shard_bytes = kShardBytes) {
  const SavedModel saved(kStep);
  const std::vector<CheckpointParameter> parameters = Parameters();
  const ModelLayout layout = Layout(shard_bytes);
  auto parent = system.OpenDirectory("/");
  if (!parent.ok()) return parent.status();
  absl::Status status = CheckModelName(**parent, "model");
  if (!status.ok()) return status;
  const auto made = CreateModel(**parent, "model", layout);
  if (!made.ok()) return made.status();
  int64_t bytes = 0;
  for (Rank rank = owners - 1; rank >= 0 && status.ok(); --rank) {
    const auto written =
        WriteModelShare(*made->directory, layout,
                        ModelSlicesOf(parameters, saved.StateOf(rank, owners, policy).slices));
    status = written.status();
    if (written.ok()) bytes += *written;
  }
  if (status.ok()) {
    EXPECT_EQ(bytes, layout.tensor_bytes);
    status = CommitModel(**parent, *made, "model", layout);
  }
  if (!status.ok()) RemoveUnfinishedModel(**parent, made->name).IgnoreError();
  return status;
}

// What optshard-checkpoint makes of a checkpoint of that step.
Files Expected(int64_t shard_bytes = kShardBytes) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  const auto saved = SavedModel(kStep).Save(*root, 2, PartitionPolicy::kGreedy).value();
  EXPECT_EQ(root->CreateDirectory("exported"), absl::OkStatus());
  const auto reader = CheckpointReader::Open(root->OpenDirectory(saved.name).value()).value();
  EXPECT_EQ(ExportModel(*reader, *root->OpenDirectory("exported").value(), shard_bytes),
            absl::OkStatus());
  return FilesIn(system, "/exported");
}

bool IsThere(FakeFileSystem& system) { return system.OpenDirectory("/model").ok(); }

TEST(ModelExport, OwnersTogether_WriteWhatTheProgramExportsFromACheckpoint) {
  for (const int64_t shard_bytes : {int64_t{1}, int64_t{5000}, kShardBytes, kDefaultShardBytes}) {
    const Files expected = Expected(shard_bytes);
    for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
      for (const int owners : {1, 2, 3}) {
        SCOPED_TRACE(absl::StrCat(shard_bytes, " bytes in a file, ", owners, " owners"));
        FakeFileSystem system;
        ASSERT_EQ(Export(system, owners, policy, shard_bytes), absl::OkStatus());
        EXPECT_EQ(FilesIn(system, "/model"), expected);
        EXPECT_EQ(system.OpenDirectory("/").value()->List()->size(), 1u);
      }
    }
  }
}

TEST(ModelExport, CrashAtEveryOperation_LeavesTheModelWholeOrNotThere) {
  const Files expected = Expected();
  int points = 0;
  for (const testing::Crash& crash : testing::Crashes()) {
    for (int64_t operation = 0;; ++operation) {
      SCOPED_TRACE(absl::StrCat("seed ", crash.seed, ", operation ", operation));
      FakeFileSystem system;
      system.CrashAtOperation(operation);
      const bool exported = Export(system).ok();
      const bool crashed = system.crashed();
      system.Restart(crash.unsynced, crash.seed * 1000 + static_cast<uint64_t>(operation));
      EXPECT_TRUE(!exported || IsThere(system)) << "a finished model is lost";
      if (IsThere(system)) {
        EXPECT_EQ(FilesIn(system, "/model"), expected);
      } else {
        EXPECT_EQ(Export(system), absl::OkStatus());
      }
      if (!crashed || HasFailure()) break;
      ++points;
    }
  }
  std::printf("%d crash points\n", points);
  EXPECT_GT(points, 100);
}

TEST(ModelExport, AFaultAtEveryOperation_LeavesTheModelWholeOrNotThere) {
  const Files expected = Expected();
  for (const bool is_done : {false, true}) {
    int points = 0;
    for (int64_t operation = 0;; ++operation) {
      SCOPED_TRACE(absl::StrCat("operation ", operation, is_done ? ", done" : ""));
      FakeFileSystem system;
      const absl::Status error = absl::DataLossError("input/output error");
      if (is_done) {
        system.FailDoneOperation(operation, error);
      } else {
        system.FailOperation(operation, error);
      }
      const absl::Status exported = Export(system);
      if (system.operations() <= operation) break;
      ++points;
      // Each of them matters, and what it makes unknown is not called finished.
      EXPECT_EQ(exported.code(), absl::StatusCode::kDataLoss);
      if (IsThere(system)) {
        EXPECT_EQ(FilesIn(system, "/model"), expected);
        continue;
      }
      EXPECT_EQ(system.OpenDirectory("/").value()->List()->size(), 0u) << "something stays";
      EXPECT_EQ(Export(system), absl::OkStatus());
      if (HasFailure()) return;
    }
    EXPECT_GT(points, 20);
  }
}

TEST(ModelExport, AFullDisk_IsSaidBeforeAnythingIsWritten) {
  FakeFileSystem system;
  system.SetCapacity(Layout().file_bytes() - 1);
  const absl::Status exported = Export(system);
  EXPECT_EQ(exported.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(exported.message()),
              HasSubstr(absl::StrCat("takes ", Layout().file_bytes())));
  EXPECT_EQ(system.OpenDirectory("/").value()->List()->size(), 0u);
  system.SetCapacity(Layout().file_bytes());
  EXPECT_EQ(Export(system), absl::OkStatus());
}

TEST(ModelExport, ADirectoryThatIsThere_IsReplacedWhereItIsEmpty) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  ASSERT_EQ(root->CreateDirectory("model"), absl::OkStatus());
  EXPECT_EQ(Export(system), absl::OkStatus());
  EXPECT_EQ(FilesIn(system, "/model"), Expected());

  const absl::Status again = Export(system);
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("/model is there and has model"));
  EXPECT_EQ(FilesIn(system, "/model"), Expected());

  ASSERT_EQ(root->CreateFile("file").status(), absl::OkStatus());
  EXPECT_EQ(CheckModelName(*root, "file").code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ModelExport, ADirectoryThatIsFilledMeanwhile_IsNotReplaced) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  const ModelLayout layout = Layout();
  const auto made = CreateModel(*root, "model", layout).value();
  ASSERT_EQ(root->CreateDirectory("model"), absl::OkStatus());
  ASSERT_EQ(root->OpenDirectory("model").value()->CreateFile("mine").status(), absl::OkStatus());
  EXPECT_EQ(CommitModel(*root, made, "model", layout).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(FilesIn(system, "/model").count("mine"), 1u);
  EXPECT_EQ(RemoveUnfinishedModel(*root, made.name), absl::OkStatus());
  EXPECT_EQ(RemoveUnfinishedModel(*root, made.name), absl::OkStatus());
  EXPECT_EQ(root->List()->size(), 1u);
}

TEST(ModelExport, ElementsThatNoTensorHas_AreRefused) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  const ModelLayout layout = Layout();
  const auto made = CreateModel(*root, "model", layout).value();
  OwnerSlice slice;
  slice.values = [](int64_t, int64_t) { return absl::InternalError("asked for"); };
  const int64_t all = 2100;  // "fc.weight"
  for (const auto& [parameter, offset, elements] :
       std::vector<std::tuple<int, int64_t, int64_t>>{{-1, 0, 1},
                                                      {7, 0, 1},
                                                      {0, -1, 1},
                                                      {0, 0, -1},
                                                      {0, all + 1, 0},
                                                      {0, 1, all},
                                                      {0, 1, INT64_MAX}}) {
    slice.parameter = parameter;
    slice.offset_elements = offset;
    slice.elements = elements;
    EXPECT_EQ(WriteModelShare(*made.directory, layout, {slice}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ModelExport, FilesThatAreNotThere_AreSaidToBeAnotherFileSystems) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  const auto slices =
      ModelSlicesOf(Parameters(), SavedModel(kStep).StateOf(0, 1, PartitionPolicy::kGreedy).slices);
  const absl::Status written = WriteModelShare(*root, Layout(), slices).status();
  EXPECT_EQ(written.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(written.message()), HasSubstr("same file system"));
  EXPECT_EQ(root->List()->size(), 0u) << "no owner creates files";
}

TEST(ModelExport, NamesOfUnfinishedModels_AreKnown) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  EXPECT_TRUE(IsUnfinishedModelName(CreateModel(*root, "m", Layout())->name));
  const std::string id(32, 'a');
  EXPECT_TRUE(IsUnfinishedModelName(absl::StrCat("m.", id, ".unfinished")));
  for (const std::string& name :
       {absl::StrCat("m.", id), absl::StrCat(".", id, ".unfinished"), absl::StrCat("m.", id, ".x"),
        absl::StrCat("m", id, ".unfinished"), absl::StrCat("m.g", id.substr(1), ".unfinished"),
        std::string("m.unfinished"), std::string()}) {
    EXPECT_FALSE(IsUnfinishedModelName(name)) << name;
  }
}

}  // namespace
}  // namespace optshard
