// State dicts as .safetensors files.
#include "server/checkpoint/state_file/safetensors_state.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/state_file/state_file.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using testing::FakeFileSystem;
using ::testing::HasSubstr;

absl::StatusOr<absl::string_view> Zeros(size_t, int64_t, int64_t bytes) {
  static const std::string zeros(1000, '\0');
  return absl::string_view(zeros).substr(0, static_cast<size_t>(bytes));
}

FileDocument StateDocument() {
  FileDocument document;
  document.tensors = {ContiguousTensor(TensorType::kBF16, {3}, 0),
                      ContiguousTensor(TensorType::kF32, {2, 2}, 1)};
  FileValue slots = FileValue::Dict();
  slots.Add(FileValue::Text("exp_avg"), FileValue::Tensor(0));
  slots.Add(FileValue::Text("row.var"), FileValue::Tensor(1));
  slots.Add(FileValue::Text("step"), FileValue::Number(2));
  FileValue state = FileValue::Dict();
  state.Add(FileValue::Int(7), slots);
  FileValue betas = FileValue::Tuple();
  betas.elements = {FileValue::Number(0.9),
                    FileValue::Number(std::numeric_limits<double>::infinity())};
  FileValue params = FileValue::List();
  params.elements = {FileValue::Int(7)};
  FileValue group = FileValue::Dict();
  group.Add(FileValue::Text("betas"), betas);
  group.Add(FileValue::Text("foreach"), FileValue());
  group.Add(FileValue::Text("lr"), FileValue::Number(1));
  group.Add(FileValue::Text("maximize"), FileValue::Flag(true));
  group.Add(FileValue::Text("params"), params);
  FileValue groups = FileValue::List();
  groups.elements = {group};
  document.value = FileValue::Dict();
  document.value.Add(FileValue::Text("state"), state);
  document.value.Add(FileValue::Text("param_groups"), groups);
  return document;
}

std::string Difference(const FileValue& a, const FileValue& b) {
  if (a.kind != b.kind || a.whole != b.whole || a.number != b.number || a.text != b.text ||
      a.elements.size() != b.elements.size()) {
    return absl::StrCat(NameOf(a.kind), " ", a.text, " is ", NameOf(b.kind), " ", b.text);
  }
  std::string all;
  for (size_t i = 0; i < a.elements.size(); ++i) {
    absl::StrAppend(&all,
                    a.kind == FileKind::kTensor ? "" : Difference(a.elements[i], b.elements[i]));
  }
  return all;
}

TEST(SafetensorsState, Written_IsReadAgain_WithTypesAndBits) {
  FakeFileSystem system;
  const FileDocument document = StateDocument();
  ASSERT_EQ(WriteStateFile(system, "/state.safetensors", document, Zeros), absl::OkStatus());
  const auto file = StateFile::Open(system, "/state.safetensors");
  ASSERT_EQ(file.status(), absl::OkStatus());
  FileDocument read = (*file)->document();
  const FileValue* const slots = &read.value.Find("state")->elements[1];
  ASSERT_NE(slots->Find("row.var"), nullptr);
  // The larger elements are first in the file.
  EXPECT_EQ(read.tensors[static_cast<size_t>(slots->Find("row.var")->whole)].shape,
            (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(read.tensors[static_cast<size_t>(slots->Find("exp_avg")->whole)].type,
            TensorType::kBF16);
  EXPECT_EQ(slots->Find("step")->number, 2);
  EXPECT_EQ(slots->Find("step")->kind, FileKind::kNumber);
  EXPECT_EQ(read.value.Find("state")->elements[0].whole, 7);
  EXPECT_EQ(Difference(*document.value.Find("param_groups"), *read.value.Find("param_groups")), "");
}

TEST(SafetensorsState, WhatIsNoStateDict_IsNotWritten_AndLeavesWhatWasThere) {
  FakeFileSystem system;
  ASSERT_EQ(WriteStateFile(system, "/s.safetensors", StateDocument(), Zeros), absl::OkStatus());
  FileDocument document = StateDocument();
  document.tensors.push_back(ContiguousTensor(TensorType::kF32, {}, 2));
  FileValue& group = document.value.elements[3].elements[0];
  group.elements[5] = FileValue::Tensor(2);  // lr
  EXPECT_THAT(WriteStateFile(system, "/s.safetensors", document, Zeros).message(),
              HasSubstr("param_groups[0][\"lr\"] is a tensor, which only a .pt file has"));
  EXPECT_THAT(WriteStateFile(system, "/s.onnx", document, Zeros).message(),
              HasSubstr("end it in .pt or .safetensors"));
  EXPECT_EQ(WriteStateFile(system, "/s.pt", document, Zeros), absl::OkStatus());
  const auto entries = system.OpenDirectory("/").value()->List().value();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[1].name, "s.safetensors");
  EXPECT_EQ(StateFile::Open(system, "/s.safetensors").status(), absl::OkStatus());
}

TEST(SafetensorsState, AFullDisk_LeavesWhatWasThere) {
  FakeFileSystem system;
  for (const char* const path : {"/s.safetensors", "/s.pt"}) {
    SCOPED_TRACE(path);
    ASSERT_EQ(WriteStateFile(system, path, StateDocument(), Zeros), absl::OkStatus());
    const int64_t before = system.operations();
    ASSERT_EQ(WriteStateFile(system, path, StateDocument(), Zeros), absl::OkStatus());
    const int64_t operations = system.operations() - before;
    for (int64_t i = 0; i < operations - 1; ++i) {
      system.FailOperation(system.operations() + i, absl::ResourceExhaustedError("full"));
      EXPECT_FALSE(WriteStateFile(system, path, StateDocument(), Zeros).ok()) << i;
      system.Restart(FakeFileSystem::Unsynced::kKept);
      EXPECT_EQ(StateFile::Open(system, path).status(), absl::OkStatus()) << i;
    }
  }
}

TEST(SafetensorsState, MetadataThatCannotBe_AreRefused) {
  const std::map<std::string, std::string> right = {
      {"optshard_state_dict", "1"}, {"param_groups", "[{\"lr\": 1.0, \"params\": [0]}]"}};
  const auto read = [&](const std::string& key, const std::string& value,
                        const std::string& tensor = "state.0.exp_avg") {
    auto metadata = right;
    metadata[key] = value;
    const auto layout =
        LayOutSafetensors({{tensor, TensorType::kF32, {1}, 0, 0}}, metadata).value();
    return FromSafetensors(layout.header).status();
  };
  EXPECT_EQ(read("k", "v"), absl::OkStatus());
  EXPECT_THAT(read("optshard_state_dict", "2").message(), HasSubstr("newer optshard"));
  EXPECT_THAT(read("param_groups", "[1]").message(), HasSubstr("in place of an object"));
  EXPECT_THAT(read("param_groups", "{}").message(), HasSubstr("no list"));
  EXPECT_THAT(read("param_groups", "[").message(), HasSubstr("param_groups"));
  EXPECT_THAT(read("param_groups", "[{\"a\": {\"b\": 1}}]").message(), HasSubstr("no value of"));
  EXPECT_THAT(read("state", "{\"0\": {\"exp_avg\": 1}}").message(), HasSubstr("a tensor, too"));
  EXPECT_THAT(read("state", "{\"-1\": {}}").message(), HasSubstr("the number \"-1\""));
  EXPECT_THAT(read("k", "v", "state.01.x").message(), HasSubstr("the number \"01\""));
  EXPECT_THAT(read("k", "v", "weight").message(), HasSubstr("not named as state.5.exp_avg"));
}

}  // namespace
}  // namespace optshard
