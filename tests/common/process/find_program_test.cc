#include "common/process/find_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/process/scratch_directory.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FindProgramTest : public ::testing::Test {
 protected:
  std::string Make(const std::string& name, fs::perms permissions) {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    fs::permissions(path, permissions);
    return path.string();
  }
  std::string Folder(const std::string& name) { return (folder_.path() / name).string(); }

  ScratchDirectory folder_;
};

TEST_F(FindProgramTest, Path_IsTakenAsItIs) {
  const std::string program = Make("a/trainer", fs::perms::owner_all);
  const auto found = FindProgram(program, "");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, program);
}

TEST_F(FindProgramTest, Name_IsTheFirstThatCanBeExecuted) {
  Make("a/trainer", fs::perms::owner_read);
  const std::string program = Make("b/trainer", fs::perms::owner_all);
  const auto found =
      FindProgram("trainer", absl::StrCat(Folder("none"), ":", Folder("a"), ":", Folder("b")));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, program);
}

TEST_F(FindProgramTest, Nowhere_IsNotFoundNamingIt) {
  const auto path = FindProgram("./no_such_trainer", "/bin");
  EXPECT_EQ(path.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("./no_such_trainer"));
  const auto name = FindProgram("no_such_trainer", "/bin");
  EXPECT_EQ(name.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(name.status().message()), HasSubstr("in the folders of PATH"));
}

TEST_F(FindProgramTest, NotExecutable_IsAnErrorThatSaysSo) {
  const std::string program = Make("a/trainer", fs::perms::owner_read);
  for (const auto& found : {FindProgram(program, ""), FindProgram("trainer", Folder("a"))}) {
    EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("cannot be executed: Permission"));
  }
}

TEST_F(FindProgramTest, Folder_IsAnErrorThatSaysSo) {
  const auto found = FindProgram(folder_.path().string(), "");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("is a folder"));
}

TEST_F(FindProgramTest, OwnProgram_Nowhere_NamesTheOption) {
  const auto found = FindOwnProgram("optshard-nothing", "server/nothing", "", "nothing-binary");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("--nothing-binary=PATH"));
}

TEST_F(FindProgramTest, OwnProgram_Given_IsThat) {
  const std::string program = Make("server", fs::perms::owner_all);
  const auto found = FindOwnProgram("optshard-server", "server/node", program, "server-binary");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, program);
}

}  // namespace
}  // namespace optshard
