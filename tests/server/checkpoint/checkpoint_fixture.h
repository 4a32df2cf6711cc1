// A directory of checkpoints in a file system that tests can damage.
#ifndef OPTSHARD_TESTS_SERVER_CHECKPOINT_CHECKPOINT_FIXTURE_H_
#define OPTSHARD_TESTS_SERVER_CHECKPOINT_CHECKPOINT_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/verify.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/fake_file_system.h"

namespace optshard::testing {

class CheckpointFixture : public ::testing::Test {
 protected:
  CheckpointFixture() : root_(system_.OpenDirectory("/").value()) {}

  std::string Save(StepNumber step, int world_size = 2,
                   PartitionPolicy policy = PartitionPolicy::kBalanced) {
    const auto saved = SavedModel(step).Save(*root_, world_size, policy);
    EXPECT_EQ(saved.status(), absl::OkStatus());
    return saved.ok() ? saved->name : "";
  }

  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& name) {
    return CheckpointReader::Open(root_->OpenDirectory(name).value());
  }

  std::vector<Damage> Verify(const std::string& name) {
    const auto damages = VerifyCheckpoint(*root_->OpenDirectory(name).value());
    EXPECT_EQ(damages.status(), absl::OkStatus());
    return damages.value_or(std::vector<Damage>());
  }

  // Changes the manifest's text and gives it a checksum that is right.
  void EditManifest(const std::string& name, const std::string& from, const std::string& to) {
    system_.Edit(absl::StrCat(name, "/manifest.json"), [&](std::string& text) {
      const std::string key = "\"checkpoint\": ";
      std::string body = text.substr(text.find(key) + key.size());
      ASSERT_NE(body.find(from), std::string::npos) << from << " in " << body;
      body.replace(body.find(from), from.size(), to);
      text =
          absl::StrCat("{\"checksum\": \"xxh3:", ChecksumText(ChecksumOf(body)), "\", ", key, body);
    });
  }

  FakeFileSystem system_;
  const std::unique_ptr<Directory> root_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_CHECKPOINT_CHECKPOINT_FIXTURE_H_
