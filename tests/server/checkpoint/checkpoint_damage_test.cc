// Whatever happens to the files of a checkpoint is found, and said with its place.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/verify.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SavedModel;
using CheckpointDamage = testing::CheckpointFixture;

TEST_F(CheckpointDamage, EveryFlippedByte_IsFoundWithItsPlace) {
  const std::string name = Save(1);
  for (const std::string file : {"owner-00000.safetensors", "owner-00001.safetensors"}) {
    size_t size = 0;
    const std::string path = absl::StrCat(name, "/", file);
    system_.Edit(path, [&](std::string& bytes) { size = bytes.size(); });
    for (size_t at = 0; at < size; at += at < 4000 ? 61 : 487) {
      const auto flip = [at](std::string& bytes) { bytes[at] ^= 0x10; };
      system_.Edit(path, flip);
      const std::vector<Damage> damages = Verify(name);
      ASSERT_EQ(damages.size(), 1u) << file << " at " << at;
      EXPECT_EQ(damages[0].file, file);
      EXPECT_THAT(damages[0].what, AllOf(HasSubstr(path), HasSubstr("is damaged")));
      if (!damages[0].tensor.empty()) {
        EXPECT_LE(damages[0].offset_bytes, static_cast<int64_t>(at));
        EXPECT_GT(damages[0].offset_bytes + damages[0].bytes, static_cast<int64_t>(at));
        EXPECT_THAT(damages[0].what, HasSubstr(damages[0].tensor));
      }
      const auto reader = Open(name);
      const std::string difference =
          reader.ok() ? SavedModel(1).Difference(**reader, 2, PartitionPolicy::kBalanced)
                      : reader.status().ToString();
      EXPECT_THAT(difference, HasSubstr("DATA_LOSS")) << file << " at " << at;
      system_.Edit(path, flip);
    }
  }
  EXPECT_TRUE(Verify(name).empty());
}

TEST_F(CheckpointDamage, EveryFlippedByteOfTheManifest_IsFound) {
  const std::string name = Save(1);
  const std::string path = absl::StrCat(name, "/manifest.json");
  size_t size = 0;
  system_.Edit(path, [&](std::string& bytes) { size = bytes.size(); });
  for (size_t at = 0; at < size; ++at) {
    const auto flip = [at](std::string& bytes) { bytes[at] ^= 0x01; };
    system_.Edit(path, flip);
    ASSERT_FALSE(Open(name).ok()) << at;
    system_.Edit(path, flip);
  }
  EXPECT_EQ(Open(name).status(), absl::OkStatus());
}

TEST_F(CheckpointDamage, FilesThatAreNotAsTheyWere_AreNamed) {
  const std::string name = Save(1);
  const std::string path = absl::StrCat(name, "/owner-00001.safetensors");
  const auto message = [&] {
    const absl::Status opened = Open(name).status();
    EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << opened;
    EXPECT_EQ(Verify(name).size(), 1u);
    return std::string(opened.message());
  };
  std::string kept;
  system_.Edit(path, [&](std::string& bytes) { (kept = bytes), bytes.pop_back(); });
  EXPECT_THAT(message(), AllOf(HasSubstr(path), HasSubstr("the manifest says")));
  system_.Edit(path, [&](std::string& bytes) { bytes = kept + "x"; });
  EXPECT_THAT(message(), HasSubstr("the manifest says"));
  system_.Edit(path, [&](std::string& bytes) { bytes.clear(); });
  EXPECT_THAT(message(), HasSubstr("it has 0 bytes"));
  // The file of another checkpoint.
  const std::string other = Save(2);
  system_.Edit(absl::StrCat(other, "/owner-00001.safetensors"),
               [&](std::string& bytes) { kept = bytes; });
  system_.Edit(path, [&](std::string& bytes) { bytes = kept; });
  const auto reader = Open(name);
  EXPECT_FALSE(reader.ok() &&
               SavedModel(1).Difference(**reader, 2, PartitionPolicy::kBalanced).empty());
  ASSERT_EQ(root_->OpenDirectory(name).value()->Remove("owner-00001.safetensors"),
            absl::OkStatus());
  EXPECT_THAT(message(), AllOf(HasSubstr(path), HasSubstr("is missing")));
}

TEST_F(CheckpointDamage, ManifestsThatAreNone_AreRefusedWithTheReason) {
  struct {
    std::string from;
    std::string to;
    std::string message;
  } const wrongs[] = {
      {"\"format_version\": 1", "\"format_version\": 2", "format version 2, this program reads"},
      {"\"format_version\": 1", "\"format_version\": 0", "format_version: it is 0"},
      {"\"format_version\": 1,\n", "", "format_version: it is missing"},
      {"\"step\": 1", "\"step\": -1", "step: it is -1"},
      {"\"step\": 1", "\"step\": 1.5", "step: it is number"},
      {"\"step\": 1", "\"step\": \"1\"", "step: it is string"},
      {"\"step\": 1", "\"step\": 1, \"step\": 1", "\"step\" is twice"},
      {"\"step\": 1", "\"step\": 18446744073709551615", "step: it is 18446744073709551615"},
      {"\"world_size\": 2", "\"world_size\": 3", "there are 2 files of a world of 3 ranks"},
      {"\"world_size\": 2", "\"world_size\": 1000000", "world_size: it is 1000000"},
      {"\"policy\": \"balanced\"", "\"policy\": \"best\"", "policy: "},
      {"\"checksum_block_bytes\": 1048576", "\"checksum_block_bytes\": 1", "expected a whole"},
      {"\"job\": \"digits\"", "\"job\": \"a\\u0007\"", "job: it has control characters"},
      {"\"header_bytes\":", "\"header_bytes\":1000000", "has a header of 1000000"},
      {"\"labels\": []", "\"labels\": [3]", "labels: expected texts"},
      {"\"labels\": []", "\"labels\": [\"\"]", "a label is empty"},
      {"\"rule\":\"adam\"", "\"rule\":7", "groups[0].rule: it is number"},
      {"\"lr\":0.001", "\"lr\":{}", "groups[0].hyperparameters: \"lr\" is object"},
      {"\"lr\":0.001", "\"lr\":[1,2,3,4,5]", "\"lr\" is array"},
      {"\"dtype\":\"float32\"", "\"dtype\":\"float33\"", "parameters[0].dtype: "},
      {"\"format\":\"float32\"", "\"format\":\"f\"", "parameters[0].arrays[0].format: \"f\""},
      {"\"shape\":[3,700]", "\"shape\":[3,-700]", "parameters[0].shape: expected whole"},
      {"\"shape\":[3,700]", "\"shape\":[3,701]", "[0:"},
      {"\"shape\":[3,700]", "\"shape\":[4294967296,4294967296]", "has too many elements"},
      {"\"group\":0", "\"group\":5", "is in group 5, of 2 groups"},
      {"\"name\":\"dynamic\"", "\"name\":\"fc.weight\"", "two parameters are \"fc.weight\""},
      {"\"name\":\"dynamic\"", "\"name\":\"%4\"", "is not followed by two hexadecimal digits"},
      {"\"name\":\"dynamic\"", "\"name\":\"\"", "a parameter has no name"},
      {"\"name\":\"exp_avg_sq\"", "\"name\":\"exp_avg\"", "has two arrays exp_avg"},
      {"\"name\":\"owner-00001.safetensors\"", "\"name\":\"../owner-00001.safetensors\"",
       "expected owner-00001.safetensors"},
      {"\"name\":\"owner-00001.safetensors\"", "\"name\":\"/etc/passwd\"",
       "expected owner-00001.safetensors"},
      {"\"rank\":1", "\"rank\":0", "file 1 is that of rank 0"},
      {"\"elements\":2100", "\"elements\":2099", "has 8400 bytes, expected 8396"},
      {"\"elements\":2100", "\"elements\":9223372036854775807", "of an array of 2100"},
      {"\"offset\":0", "\"offset\":1", "tensor \""},
      {"\"parameter\":0", "\"parameter\":6", "tensor \""},
      {"\"parameter\":0", "\"parameter\":200000", "is of parameter 200000, of 7"},
      {"\"array\":1", "\"array\":9", "is of array 9 of parameter"},
      {"\"checksums\":[\"", "\"checksums\":[\"x", "expected 16 hexadecimal digits"},
      {"\"checksums\":[\"", "\"checksums\":[\"0123456789abcdef\",\"", "2 checksums, expected one"},
      {"\"scales\":true", "\"scales\":7", "scales: it is number, expected true"},
      {"\n}}\n", "\n}}", "does not end with"},
      {"\n}}\n", "\n}]}\n", "not JSON: at byte"},
  };
  for (const auto& wrong : wrongs) {
    SCOPED_TRACE(absl::StrCat(wrong.from, " -> ", wrong.to));
    const std::string name = Save(1);
    EditManifest(name, wrong.from, wrong.to);
    const absl::Status opened = Open(name).status();
    EXPECT_EQ(opened.code(), absl::StrContains(wrong.message, "format version 2")
                                 ? absl::StatusCode::kFailedPrecondition
                                 : absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(opened.message()),
                AllOf(HasSubstr(absl::StrCat(name, "/manifest.json")), HasSubstr(wrong.message)));
    // Listed as what it is, and never as one that loads.
    const auto entries = ListCheckpoints(*root_).value();
    ASSERT_EQ(entries.size(), 1u);
    const bool newer = opened.code() == absl::StatusCode::kFailedPrecondition;
    EXPECT_EQ(entries[0].state, newer ? CheckpointState::kUnreadable : CheckpointState::kDamaged);
    EXPECT_EQ(entries[0].problem, opened);
    EXPECT_EQ(RemoveCheckpoint(*root_, entries[0]).value(), Removal::kRemoved);
  }
}

// Which of its files are there, and how large, is in the list without reading them.
TEST_F(CheckpointDamage, FilesOfAnotherSize_AreListedAsDamaged) {
  const std::string name = Save(1);
  const std::string path = absl::StrCat(name, "/owner-00001.safetensors");
  system_.Edit(path, [](std::string& bytes) { bytes.pop_back(); });
  const CheckpointEntry shorter = ListCheckpoints(*root_).value()[0];
  EXPECT_EQ(shorter.state, CheckpointState::kDamaged);
  EXPECT_THAT(std::string(shorter.problem.message()),
              AllOf(HasSubstr(path), HasSubstr(" bytes, the manifest says ")));
  ASSERT_EQ(root_->OpenDirectory(name).value()->Remove("owner-00001.safetensors"),
            absl::OkStatus());
  EXPECT_THAT(std::string(ListCheckpoints(*root_).value()[0].problem.message()),
              AllOf(HasSubstr(path), HasSubstr("is missing")));
}

TEST_F(CheckpointDamage, ErrorsThatSayNothingOfTheContent_AreUnreadable) {
  Save(1);
  for (const absl::Status& error : {absl::PermissionDeniedError("not for you"),
                                    absl::ResourceExhaustedError("too many open files")}) {
    for (int64_t operation = 1; operation < 6; ++operation) {
      system_.FailOperation(system_.operations() + operation, error);
      const auto entries = ListCheckpoints(*root_).value();
      ASSERT_EQ(entries.size(), 1u);
      EXPECT_EQ(entries[0].state, CheckpointState::kUnreadable) << operation;
      EXPECT_EQ(entries[0].problem, error);
    }
  }
}

TEST_F(CheckpointDamage, HeaderOfAnotherType_DoesNotGoWithTheManifest) {
  const std::string name = Save(1);
  const CheckpointFile file = Open(name).value()->manifest().files[0];
  uint64_t changed = 0;
  system_.Edit(absl::StrCat(name, "/", file.name), [&](std::string& bytes) {
    bytes.replace(bytes.find("\"F32\""), 5, "\"I32\"");
    changed = ChecksumOf(bytes.substr(0, static_cast<size_t>(file.header_bytes)));
  });
  EditManifest(name, ChecksumText(file.header_checksum), ChecksumText(changed));
  const absl::Status opened = Open(name).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(opened.message()),
              AllOf(HasSubstr(" is I32 ["), HasSubstr("], expected F32 [")));
}

TEST_F(CheckpointDamage, LongNames_AreCutInErrors) {
  const std::string name = Save(1);
  EditManifest(name, "\"lr\":0.001", absl::StrCat("\"", std::string(1 << 16, 'x'), "\":{}"));
  EXPECT_LT(Open(name).status().message().size(), 1000u);
}

TEST_F(CheckpointDamage, Verify_OfARenamedDirectory_SaysSo) {
  const std::string name = Save(1);
  VerifyOptions options;
  options.step = 2;
  const auto damages = VerifyCheckpoint(*root_->OpenDirectory(name).value(), options).value();
  ASSERT_EQ(damages.size(), 1u);
  EXPECT_THAT(damages[0].what, AllOf(HasSubstr(name), HasSubstr("was renamed")));
}

TEST_F(CheckpointDamage, ManifestOfAnother_IsRefused) {
  const std::string name = Save(1);
  for (const auto& [text, message] :
       {std::make_pair("", "not the manifest of a checkpoint of optshard"),
        std::make_pair("{}", "not the manifest"),
        std::make_pair("{\"checksum\": \"xxh3:01", "damaged within its first line"),
        std::make_pair("{\"checksum\": \"xxh3:0123456789ABCDEF\", \"checkpoint\": {}}\n",
                       "damaged within its first line"),
        std::make_pair("{\"checksum\": \"xxh3:0123456789abcdef\", \"checkpoint\": {}}\n",
                       "is damaged: its checksum is 0123456789abcdef")}) {
    system_.Edit(absl::StrCat(name, "/manifest.json"),
                 [text = text](auto& bytes) { bytes = text; });
    EXPECT_THAT(std::string(Open(name).status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace optshard
