// Files of PyTorch that become checkpoints.
#include "server/checkpoint/state_file/checkpoint_import.h"

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/half.h"
#include "common/parameter_space.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "server/checkpoint/state_file/model_files.h"
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

// Copies a file that golden/make_imports.py has made.
void CopyGolden(const std::string& golden, Directory& directory, const std::string& name) {
  std::ifstream file(absl::StrCat("tests/client/golden/imports/", golden), std::ios::binary);
  ASSERT_TRUE(file) << golden;
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_EQ(directory.CreateFile(name).value()->WriteAt(0, {bytes}), absl::OkStatus());
}

class CheckpointImports : public ::testing::Test {
 protected:
  CheckpointImports() : root_(system_.OpenDirectory("/").value()) {
    CopyGolden("adamw.pt", *root_, "state.pt");
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
    model_ = ModelSource::Open(system_, "/model.pt").value();
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
  std::unique_ptr<ModelSource> model_;
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
  std::string parameter(480, '?');
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

// As Hugging Face lays out a model of several files, with the tensors of SetModel.
class ShardedModels : public CheckpointImports {
 protected:
  ShardedModels() {
    EXPECT_EQ(root_->CreateDirectory("model"), absl::OkStatus());
    directory_ = root_->OpenDirectory("model").value();
    std::vector<SafetensorsTensor> tensors;
    for (size_t i = 0; i < kShapes.size(); ++i) {
      import_.names.push_back(absl::StrCat("layer", 9 - i));
      tensors.push_back(ModelTensor(import_.names[i], TensorType::kF32, kShapes[i]));
    }
    EXPECT_EQ(WriteModel(*directory_, tensors, Sevens, /*shard_bytes=*/100), absl::OkStatus());
  }

  void WriteIndex(const std::string& weight_map) {
    ASSERT_EQ(directory_->Remove(kModelIndexName), absl::OkStatus());
    ASSERT_EQ(directory_->CreateFile(kModelIndexName)
                  .value()
                  ->WriteAt(0, {absl::StrCat("{\"weight_map\": ", weight_map, "}")}),
              absl::OkStatus());
  }

  absl::Status Refusal() { return ModelSource::Open(system_, "/model").status(); }

  std::unique_ptr<Directory> directory_;
};

TEST_F(ShardedModels, AreImportedByTheirIndexOrTheirDirectory) {
  const std::string expected = ImportCheckpoint(*root_, import_).value();
  const std::string index = absl::StrCat("/model/", kModelIndexName);
  for (const std::string& path : {std::string("/model"), index}) {
    const auto model = ModelSource::Open(system_, path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_FALSE((*model)->has_order());
    import_.model = model->get();
    const auto name = ImportCheckpoint(*root_, import_);
    ASSERT_TRUE(name.ok()) << name.status();
    const auto made = CheckpointReader::Open(root_->OpenDirectory(*name).value()).value();
    const auto other = CheckpointReader::Open(root_->OpenDirectory(expected).value()).value();
    ASSERT_EQ(made->manifest().files.size(), other->manifest().files.size());
    for (size_t f = 0; f < made->manifest().files.size(); ++f) {
      const auto& tensors = made->manifest().files[f].tensors;
      const auto& others = other->manifest().files[f].tensors;
      ASSERT_EQ(tensors.size(), others.size());
      for (size_t t = 0; t < tensors.size(); ++t) {
        EXPECT_EQ(tensors[t].name, others[t].name);
        EXPECT_EQ(tensors[t].checksums, others[t].checksums);
      }
    }
  }
}

TEST_F(ShardedModels, ADirectoryWithOneFile_IsThatFile) {
  ASSERT_EQ(root_->CreateDirectory("one"), absl::OkStatus());
  EXPECT_EQ(ModelSource::Open(system_, "/one").status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(WriteModel(*root_->OpenDirectory("one").value(),
                       {ModelTensor("layer9", TensorType::kF32, {5, 3})}, Sevens),
            absl::OkStatus());
  EXPECT_TRUE(ModelSource::Open(system_, "/one").value()->Find("layer9").has_value());
}

TEST_F(ShardedModels, IndexThatIsWrong_IsRefusedWithWhatIsWrong) {
  ASSERT_EQ(Refusal(), absl::OkStatus());
  WriteIndex(R"({"layer9": "model-00003-of-00003.safetensors"})");
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("has no tensor \"layer9\""));
  for (const char* const name : {"../model.pt", "/model.pt", "..", "", "\\u001b[2J"}) {
    WriteIndex(absl::StrCat("{\"layer9\": \"", name, "\"}"));
    EXPECT_EQ(Refusal().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(Refusal().message()), HasSubstr("weight_map[\"layer9\"] is not"));
  }
  for (const char* const name : {"model-00001-of-00003.safetensors", ".."}) {
    WriteIndex(absl::StrCat("{\"", std::string(5000, 'x'), "\": \"", name, "\"}"));
    EXPECT_FALSE(Refusal().ok());
    EXPECT_LT(Refusal().message().size(), 500u) << name;
  }
  WriteIndex("{\"layer9\": 5}");
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kInvalidArgument);
  WriteIndex("[]");
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("weight_map"));
  WriteIndex(R"({"layer9": "gone.safetensors"})");
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("gone.safetensors"));
}

struct GoldenParameter {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// As golden/make_imports.py has them.
std::vector<GoldenParameter> GoldenParameters() {
  return {{"scale", DType::kFloat64, {}},
          {"unused", DType::kFloat16, {0, 4}},
          {"encoder.weight", DType::kBFloat16, {5, 3}},
          {"encoder.bias", DType::kBFloat16, {5}},
          {"norm.weight", DType::kFloat32, {7}},
          {"norm.bias", DType::kFloat32, {7}}};
}

// As what fill() there gives.
std::string GoldenBytes(const GoldenParameter& parameter, size_t index) {
  std::string bytes;
  const auto append = [&bytes](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto count = static_cast<size_t>(ElementsOf(parameter.shape));
  for (size_t i = 0; i < count; ++i) {
    const double value = (static_cast<double>((7 * i + 3 * index) % 251) - 125) / 16;
    if (parameter.dtype == DType::kFloat64) {
      append(value);
    } else if (parameter.dtype == DType::kFloat32) {
      append(static_cast<float>(value));
    } else {
      append(ToBFloat16(static_cast<float>(value)));
    }
  }
  return bytes;
}

// A model that PyTorch, safetensors and huggingface_hub have written.
class ModelsOfOthers : public ::testing::Test {
 protected:
  ModelsOfOthers() : root_(system_.OpenDirectory("/").value()) {
    EXPECT_EQ(root_->CreateDirectory("sharded"), absl::OkStatus());
    const auto sharded = root_->OpenDirectory("sharded").value();
    for (const char* const name :
         {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
          "model-00003-of-00003.safetensors", kModelIndexName}) {
      CopyGolden(absl::StrCat("model/sharded/", name), *sharded, name);
    }
    for (const char* const name : {"optimizer.pt", "model.pt", "model.safetensors"}) {
      CopyGolden(absl::StrCat("model/", name), *root_, name);
    }
  }

  std::unique_ptr<CheckpointReader> Import(const std::string& path) {
    const auto state = StateFile::Open(system_, "/optimizer.pt").value();
    const auto model = ModelSource::Open(system_, path).value();
    CheckpointImport import;
    import.state = state.get();
    import.model = model.get();
    import.rules = {"adamw"};
    const std::string name = ImportCheckpoint(*root_, import).value();
    return CheckpointReader::Open(root_->OpenDirectory(name).value()).value();
  }

  FakeFileSystem system_;
  const std::unique_ptr<Directory> root_;
};

TEST_F(ModelsOfOthers, InEachForm_HaveTheSameBits) {
  for (const char* const path : {"/model.pt", "/model.safetensors", "/sharded"}) {
    SCOPED_TRACE(path);
    const auto reader = Import(path);
    const std::vector<CheckpointParameter>& imported = reader->manifest().parameters;
    const std::vector<GoldenParameter> expected = GoldenParameters();
    ASSERT_EQ(imported.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(expected[i].name);
      EXPECT_EQ(imported[i].name, expected[i].name);
      EXPECT_EQ(imported[i].dtype, expected[i].dtype);
      EXPECT_EQ(imported[i].shape, expected[i].shape);
      EXPECT_EQ(imported[i].steps, 2);
      const std::string bytes = GoldenBytes(expected[i], i);
      std::string read(bytes.size(), '?');
      ASSERT_EQ(reader->Read(static_cast<int>(i), 0, ArrayPart::kValues, 0,
                             ElementsOf(expected[i].shape), absl::MakeSpan(read)),
                absl::OkStatus());
      EXPECT_TRUE(read == bytes);
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
