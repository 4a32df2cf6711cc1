// Models as Hugging Face lays them out.
#include "server/checkpoint/state_file/model_files.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/state_file/state_file.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::FakeFileSystem;

std::vector<SafetensorsTensor> Tensors() {
  return {{"a", TensorType::kF32, {5}, 0, 0},
          {"b", TensorType::kBF16, {10}, 0, 0},
          {"c", TensorType::kF32, {100}, 0, 0},
          {"d", TensorType::kF64, {}, 0, 0},
          {"e", TensorType::kF64, {0, 7}, 0, 0}};
}

std::vector<ModelFile> Files(const std::vector<SafetensorsTensor>& tensors, int64_t shard_bytes) {
  return LayOutModel(tensors, shard_bytes).value().files;
}

TEST(ModelFiles, Divided_FillsFilesInOrder_AndGivesLargeTensorsTheirOwn) {
  const auto tensors = Tensors();
  const auto files = Files(tensors, 40);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_THAT(files[0].tensors, ElementsAre(0, 1));  // 20 + 20 bytes
  EXPECT_THAT(files[1].tensors, ElementsAre(2));
  EXPECT_THAT(files[2].tensors, ElementsAre(3, 4));
  // Within a file those with the largest elements come first.
  EXPECT_THAT(Files(tensors, 448)[0].tensors, ElementsAre(3, 4, 0, 2, 1));
  EXPECT_EQ(files[1].name, "model-00002-of-00003.safetensors");
  EXPECT_EQ(Files(tensors, 39).size(), 4u);
  EXPECT_EQ(Files(tensors, 448).size(), 1u);
  EXPECT_EQ(Files(tensors, 448)[0].name, "model.safetensors");
  EXPECT_EQ(Files({}, 1).size(), 1u);
}

TEST(ModelFiles, Places_AreWhereTheHeadersSay) {
  const auto tensors = Tensors();
  const ModelLayout layout = LayOutModel(tensors, 40).value();
  EXPECT_EQ(layout.tensor_bytes, 448);
  int64_t bytes = static_cast<int64_t>(layout.index.size());
  for (size_t f = 0; f < layout.files.size(); ++f) {
    const SafetensorsHeader& header = layout.files[f].layout.header;
    bytes += header.file_bytes();
    ASSERT_EQ(header.tensors.size(), layout.files[f].tensors.size());
    for (size_t t = 0; t < header.tensors.size(); ++t) {
      const size_t index = layout.files[f].tensors[t];
      EXPECT_EQ(header.tensors[t].name, tensors[index].name);
      EXPECT_EQ(layout.places[index].file, f);
      EXPECT_EQ(layout.places[index].bytes, header.tensors[t].bytes);
      EXPECT_EQ(layout.places[index].offset_bytes,
                header.data_begin_bytes + header.tensors[t].offset_bytes);
    }
  }
  EXPECT_EQ(layout.file_bytes(), bytes);
  EXPECT_EQ(LayOutModel(tensors, 448)->index, "");
}

TEST(ModelFiles, Written_AreReadByTheIndex) {
  FakeFileSystem system;
  const auto root = system.OpenDirectory("/").value();
  const auto tensors = Tensors();
  int64_t last_done = 0;
  const auto source = [](size_t tensor, int64_t,
                         int64_t bytes) -> absl::StatusOr<absl::string_view> {
    static std::string piece;
    piece.assign(static_cast<size_t>(bytes), static_cast<char>('a' + tensor));
    return absl::string_view(piece);
  };
  ASSERT_EQ(WriteModel(*root, tensors, source, 40,
                       [&](int64_t done, int64_t all) {
                         EXPECT_EQ(all, 448);
                         EXPECT_GT(done, last_done);
                         last_done = done;
                       }),
            absl::OkStatus());
  EXPECT_EQ(last_done, 448);
  std::string text;
  system.Edit("model.safetensors.index.json", [&](std::string& bytes) { text = bytes; });
  const auto index = nlohmann::json::parse(text);
  EXPECT_EQ(index["metadata"]["total_size"], 448);
  ASSERT_EQ(index["weight_map"].size(), 5u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = index["weight_map"][tensors[i].name].get<std::string>();
    const auto file = StateFile::Open(system, "/" + name);
    ASSERT_EQ(file.status(), absl::OkStatus());
    const FileDocument& document = (*file)->document();
    const FileValue* const value = document.value.Find(tensors[i].name);
    ASSERT_NE(value, nullptr);
    const FileTensor& tensor = document.tensors[static_cast<size_t>(value->whole)];
    EXPECT_EQ(tensor.shape, tensors[i].shape);
    EXPECT_EQ(tensor.type, tensors[i].type);
    std::string bytes(static_cast<size_t>(tensor.bytes()), '?');
    ASSERT_EQ((*file)->Read(tensor, absl::MakeSpan(bytes)), absl::OkStatus());
    EXPECT_EQ(bytes, std::string(bytes.size(), static_cast<char>('a' + i)));
  }
  EXPECT_EQ(root->List().value().size(), 4u);
}

}  // namespace
}  // namespace optshard
