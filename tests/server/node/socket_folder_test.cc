#include "server/node/socket_folder.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

class SocketFolderTest : public ::testing::Test {
 protected:
  SocketFolderTest() { EXPECT_NE(mkdtemp(base_), nullptr); }
  ~SocketFolderTest() override { std::filesystem::remove_all(base_); }

  char base_[32] = "/tmp/optshard-XXXXXX";
};

TEST_F(SocketFolderTest, FolderThatIsNotThere_IsMade_ForThisUserAlone) {
  const std::string folder = std::string(base_) + "/own";
  const absl::Status made = MakeSocketFolder(folder + "/socket");
  ASSERT_TRUE(made.ok()) << made;
  struct stat status = {};
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
}

TEST_F(SocketFolderTest, FolderThatIsThere_IsLeftAsItIs) {
  ASSERT_EQ(chmod(base_, 0711), 0);
  EXPECT_TRUE(MakeSocketFolder(std::string(base_) + "/socket").ok());
  struct stat status = {};
  ASSERT_EQ(stat(base_, &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0711u);
}

TEST_F(SocketFolderTest, NoPlaceForTheFolder_IsAnErrorNamingIt) {
  const absl::Status failed = MakeSocketFolder(std::string(base_) + "/no/own/socket");
  EXPECT_TRUE(absl::IsInvalidArgument(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("/no/own'"));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSocketFolder("@name")));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSocketFolder("socket")));
}

}  // namespace
}  // namespace optshard
