#include "common/port_file.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PortFileTest : public ::testing::Test {
 protected:
  PortFileTest() {
    std::string name = std::string(std::getenv("TEST_TMPDIR")) + "/port_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~PortFileTest() override { fs::remove_all(folder_); }

  static std::string Read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  size_t Files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(PortFileTest, Write_NewOrThereAlready_HasThePortAndNothingElseIsLeft) {
  const fs::path path = folder_ / "port";
  ASSERT_TRUE(WritePortFile(path, 4700).ok());
  EXPECT_EQ(Read(path), "4700\n");
  ASSERT_TRUE(WritePortFile(path, 80).ok());
  EXPECT_EQ(Read(path), "80\n");
  EXPECT_EQ(Files(), 1u);
}

TEST_F(PortFileTest, Write_LinksPlantedAtTheTemporaryNames_AreNotFollowed) {
  const fs::path victim = folder_ / "victim";
  Write(victim, "precious");
  // The temporary names that this process may use, whether numbered or not.
  fs::create_symlink(victim, folder_ / absl::StrCat("port.", getpid()));
  fs::create_symlink(victim, folder_ / absl::StrCat("port.", getpid(), ".0"));
  fs::create_symlink(victim, folder_ / absl::StrCat("port.", getpid(), ".1"));
  const absl::Status written = WritePortFile(folder_ / "port", 4700);
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(Read(victim), "precious");
  EXPECT_FALSE(fs::is_symlink(folder_ / "port"));
  EXPECT_EQ(Read(folder_ / "port"), "4700\n");
}

TEST_F(PortFileTest, Write_LinkAtTheNameItself_IsReplacedAndNotFollowed) {
  const fs::path victim = folder_ / "victim";
  Write(victim, "precious");
  fs::create_symlink(victim, folder_ / "port");
  ASSERT_TRUE(WritePortFile(folder_ / "port", 4700).ok());
  EXPECT_EQ(Read(victim), "precious");
  EXPECT_FALSE(fs::is_symlink(folder_ / "port"));
}

TEST_F(PortFileTest, Write_NoSuchFolder_NamesTheFile) {
  const std::string path = (folder_ / "missing" / "port").string();
  const absl::Status written = WritePortFile(path, 4700);
  EXPECT_EQ(written.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(written.message()), HasSubstr(path));
}

TEST_F(PortFileTest, Write_FolderAtTheName_IsAnErrorAndLeavesNothing) {
  fs::create_directories(folder_ / "port" / "inside");
  EXPECT_FALSE(WritePortFile(folder_ / "port", 4700).ok());
  EXPECT_EQ(Files(), 1u);
}

}  // namespace
}  // namespace optshard
