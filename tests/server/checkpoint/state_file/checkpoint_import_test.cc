// Files of PyTorch that become checkpoints.
#include "server/checkpoint/state_file/checkpoint_import.h"

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using testing::FakeFileSystem;
using ::testing::HasSubstr;

const std::vector<std::vector<int64_t>> kShapes = {{5, 3}, {6, 20}, {7}, {}};

absl::StatusOr<absl::string_view> Sevens(size_t, int64_t, int64_t bytes) {
  static const std::string sevens(1000, '7');
  return absl::string_view(sevens).substr(0, static_cast<size_t>(bytes));
}

class CheckpointImports : public ::testing::Test {
 protected:
  CheckpointImports() : root_(system_.OpenDirectory("/").value()) {
    std::ifstream file("tests/client/golden/imports/adamw.pt", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    EXPECT_EQ(root_->CreateFile("state.pt").value()->WriteAt(0, {bytes}), absl::OkStatus());
    state_ = StateFile::Open(system_, "/state.pt").value();
    SetModel([](FileDocument&) {});
    import_.state = state_.get();
    import_.rules = {"adamw"};
  }

  // As the state_dict() of a model with these parameters.
  void SetModel(const std::function<void(FileDocument&)>& change) {
    FileDocument model;
    model.value = FileValue::Dict();
    for (size_t i = 0; i < kShapes.size(); ++i) {
      model.tensors.push_back(ContiguousTensor(TensorType::kF32, kShapes[i], i));
      model.value.Add(FileValue::Text(absl::StrCat("layer", 9 - i)), FileValue::Tensor(i));
    }
    change(model);
    EXPECT_EQ(WriteStateFile(system_, "/model.pt", model, Sevens), absl::OkStatus());
    model_ = StateFile::Open(system_, "/model.pt").value();
    import_.model = model_.get();
  }

  std::string Error() {
    const absl::Status status = ImportCheckpoint(*root_, import_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(root_->List().value().size(), 2u) << "something was written";
    return std::string(status.message());
  }

  FakeFileSystem system_;
  const std::unique_ptr<Directory> root_;
  std::unique_ptr<StateFile> state_;
  std::unique_ptr<StateFile> model_;
  CheckpointImport import_;
};

TEST_F(CheckpointImports, OfPyTorch_HasItsStateAndParameters) {
  const auto name = ImportCheckpoint(*root_, import_);
  ASSERT_EQ(name.status(), absl::OkStatus());
  EXPECT_EQ(*name, "step-000000000002");
  const auto reader = CheckpointReader::Open(root_->OpenDirectory(*name).value()).value();
  const CheckpointManifest& manifest = reader->manifest();
  ASSERT_EQ(manifest.parameters.size(), 4u);
  EXPECT_EQ(manifest.parameters[1].name, "layer8");
  EXPECT_EQ(manifest.parameters[1].steps, 2);
  EXPECT_EQ(manifest.groups[0].hyperparameters.Number("lr"), 0.001);
  std::string parameter(6 * 20 * 4, '?');
  ASSERT_EQ(reader->Read(1, 0, ArrayPart::kValues, 0, 120, absl::MakeSpan(parameter)),
            absl::OkStatus());
  EXPECT_EQ(parameter, std::string(480, '7'));

  // What it exports again is what was imported.
  ASSERT_EQ(ExportState(*reader, system_, "/again.pt"), absl::OkStatus());
  const auto again = StateFile::Open(system_, "/again.pt").value();
  const FileValue& state = *again->document().value.Find("state");
  const FileValue& given = *state_->document().value.Find("state");
  ASSERT_EQ(state.elements.size(), given.elements.size());
  for (size_t i = 1; i < given.elements.size(); i += 2) {
    for (const char* const slot : {"exp_avg", "exp_avg_sq", "step"}) {
      std::string bytes[2];
      int side = 0;
      for (const auto& [file, slots] : {std::make_pair(again.get(), &state.elements[i]),
                                        std::make_pair(state_.get(), &given.elements[i])}) {
        const FileTensor& tensor =
            file->document().tensors[static_cast<size_t>(slots->Find(slot)->whole)];
        bytes[side].resize(static_cast<size_t>(tensor.bytes()));
        ASSERT_EQ(file->Read(tensor, absl::MakeSpan(bytes[side++])), absl::OkStatus());
      }
      EXPECT_TRUE(bytes[0] == bytes[1]) << i << " " << slot;
    }
  }
}

TEST_F(CheckpointImports, WhatDoesNotFit_IsSaid_AndNothingIsWritten) {
  import_.rules = {"adam"};
  EXPECT_THAT(Error(), HasSubstr("with it the rule is adamw, without it adam"));
  import_.rules = {"sgd"};
  EXPECT_THAT(Error(), HasSubstr("param_groups[0] has the option \"betas\", which the rule sgd"));
  import_.rules = {"adamm"};
  EXPECT_THAT(Error(), HasSubstr("adamm"));
  import_.rules = {"adamw"};
  import_.key = "optimizer";
  EXPECT_THAT(Error(), HasSubstr("no state dict of an optimizer"));
  import_.key = "";
  SetModel([](FileDocument& model) {
    model.value.Add(FileValue::Text("running_mean"), FileValue::Tensor(0));
  });
  EXPECT_THAT(Error(), HasSubstr("5 tensors are the optimizer's 4 parameters cannot be told"));
  import_.names = {"layer9", "layer8", "layer7", "layer5"};
  EXPECT_THAT(Error(), HasSubstr("has no parameter \"layer5\""));
  import_.names = {"layer8", "layer9", "layer7", "layer6"};
  EXPECT_THAT(Error(), HasSubstr("parameter \"layer8\": its slot \"exp_avg\" has the shape [5, 3], "
                                 "expected [6, 20]"));
}

}  // namespace
}  // namespace optshard
