// Checkpoints that become files of other programs.
#include "server/checkpoint/state_file/checkpoint_export.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/block_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/state_file/state_file.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

class CheckpointExport : public testing::CheckpointFixture {
 protected:
  static std::string BytesOf(const StateFile& file, const FileValue& value) {
    const FileTensor& tensor = file.document().tensors[static_cast<size_t>(value.whole)];
    std::string bytes(static_cast<size_t>(tensor.bytes()), '?');
    EXPECT_EQ(file.Read(tensor, absl::MakeSpan(bytes)), absl::OkStatus());
    return bytes;
  }

  // Of an array as float32, where it is coded.
  static std::string BytesOf(const CheckpointReader& reader, int parameter, int array) {
    const CheckpointParameter& found = reader.manifest().parameters[static_cast<size_t>(parameter)];
    const ArrayFormat format = found.arrays[static_cast<size_t>(array)].format;
    const int64_t elements = found.ElementsOf(array);
    std::map<ArrayPart, std::string> parts;
    for (const ArrayPart part : {ArrayPart::kValues, ArrayPart::kScales}) {
      if (part == ArrayPart::kScales && !IsCoded(format)) continue;
      std::string& bytes = parts[part];
      bytes.resize(static_cast<size_t>(PartBytes(format, part, elements)));
      EXPECT_EQ(reader.Read(parameter, array, part, 0, elements, absl::MakeSpan(bytes)),
                absl::OkStatus());
    }
    if (!IsCoded(format)) return parts[ArrayPart::kValues];
    std::vector<float> values(static_cast<size_t>(elements));
    Decode({*BlockCodeOf(format), reinterpret_cast<uint8_t*>(parts[ArrayPart::kValues].data()),
            parts[ArrayPart::kScales].data()},
           elements, values.data());
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  void ExpectState(const StateFile& file, const CheckpointReader& reader) {
    const FileValue& state = *file.document().value.Find("state");
    ASSERT_EQ(state.elements.size(), 2 * reader.manifest().parameters.size());
    for (size_t p = 0; p < reader.manifest().parameters.size(); ++p) {
      const CheckpointParameter& parameter = reader.manifest().parameters[p];
      EXPECT_EQ(state.elements[2 * p].whole, static_cast<int64_t>(p));
      const FileValue& slots = state.elements[2 * p + 1];
      EXPECT_EQ(slots.Find("parameter"), nullptr);
      for (size_t a = 1; a < parameter.arrays.size(); ++a) {
        const FileValue* const slot = slots.Find(parameter.arrays[a].name);
        ASSERT_NE(slot, nullptr);
        EXPECT_TRUE(BytesOf(file, *slot) ==
                    BytesOf(reader, static_cast<int>(p), static_cast<int>(a)))
            << p << " " << parameter.arrays[a].name;
      }
      float steps = 0;
      std::memcpy(&steps, BytesOf(file, *slots.Find("step")).data(), sizeof(steps));
      EXPECT_EQ(steps, static_cast<float>(parameter.steps));
      EXPECT_EQ(slots.Find("mu_product") != nullptr, p % 2 == 0);
    }
  }
};

TEST_F(CheckpointExport, State_IsThatOfAllRanks_InEveryFormat) {
  const auto reader = Open(Save(3, 2)).value();
  for (const char* const path : {"/state.pt", "/state.safetensors"}) {
    SCOPED_TRACE(path);
    int64_t last = 0;
    ASSERT_EQ(ExportState(*reader, system_, path,
                          [&](int64_t done, int64_t all) {
                            EXPECT_LE(done, all);
                            last = all - done;
                          }),
              absl::OkStatus());
    EXPECT_EQ(last, 0);
    const auto file = StateFile::Open(system_, path);
    ASSERT_EQ(file.status(), absl::OkStatus());
    ExpectState(**file, *reader);
    const FileValue& groups = *(*file)->document().value.Find("param_groups");
    ASSERT_EQ(groups.elements.size(), 2u);
    const FileValue& first = groups.elements[0];
    EXPECT_EQ(first.Find("betas")->kind, FileKind::kTuple);
    EXPECT_EQ(first.Find("weight_decay")->kind, FileKind::kNumber);  // a default
    EXPECT_EQ(first.Find("params")->elements.size(), 4u);
    EXPECT_EQ(groups.elements[1].Find("params")->elements[0].whole, 4);
    EXPECT_EQ(groups.elements[1].Find("param_names")->elements[1].text,
              "100%25 odd%0A%FF[0:3]/\"name");
  }
}

TEST_F(CheckpointExport, Model_HasTheParametersOfAllRanks) {
  const auto reader = Open(Save(3, 2)).value();
  ASSERT_EQ(root_->CreateDirectory("model"), absl::OkStatus());
  const auto directory = root_->OpenDirectory("model").value();
  ASSERT_EQ(ExportModel(*reader, *directory, kDefaultShardBytes), absl::OkStatus());
  const auto file = StateFile::Open(system_, "/model/model.safetensors");
  ASSERT_EQ(file.status(), absl::OkStatus());
  const FileValue* const value = (*file)->document().value.Find("companded");
  ASSERT_NE(value, nullptr);
  EXPECT_TRUE(BytesOf(**file, *value) == BytesOf(*reader, 2, 0));
  EXPECT_EQ((*file)->document().tensors.size(), 7u);
}

TEST_F(CheckpointExport, ADamagedOne_IsNotExported) {
  const std::string name = Save(3, 2);
  const auto reader = Open(name).value();
  system_.Edit(absl::StrCat(name, "/", OwnerFileName(1)), [](std::string& bytes) {
    for (size_t at = bytes.size() / 2; at < bytes.size(); ++at) bytes[at] ^= 1;
  });
  EXPECT_TRUE(absl::IsDataLoss(ExportState(*reader, system_, "/state.pt")));
  EXPECT_TRUE(absl::IsNotFound(StateFile::Open(system_, "/state.pt").status()));
}

}  // namespace
}  // namespace optshard
