#include "common/link/unique_fd.h"

#include <fcntl.h>

#include <utility>

#include "gtest/gtest.h"

namespace optshard {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, Default_HoldsNone) {
  const UniqueFd fd;
  EXPECT_EQ(fd.get(), -1);
  EXPECT_FALSE(fd.valid());
}

TEST(UniqueFd, Moved_ClosesOnceWithTheLastOwner) {
  const int raw = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    UniqueFd owner;
    {
      UniqueFd first(raw);
      UniqueFd second(std::move(first));
      owner = std::move(second);
    }
    EXPECT_EQ(owner.get(), raw);
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFd, AssignedNone_Closes) {
  const int raw = open("/dev/null", O_RDONLY | O_CLOEXEC);
  UniqueFd owner(raw);
  EXPECT_TRUE(owner.valid());
  owner = UniqueFd();
  EXPECT_FALSE(owner.valid());
  EXPECT_FALSE(IsOpen(raw));
}

}  // namespace
}  // namespace optshard
