#include "common/request_id.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <set>
#include <string>

#include "tests/testing/in_child.h"

namespace optshard {
namespace {

TEST(RequestId, ManyCalls_AllDiffer) {
  std::set<std::string> ids;
  for (int call = 0; call < 1000; ++call) ids.insert(NewRequestId());
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ids.begin()->size(), 32u);
  EXPECT_EQ(ids.begin()->find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(RequestId, ManyTokens_AllDifferAndNoneIsZero) {
  std::set<uint64_t> tokens;
  for (int call = 0; call < 1000; ++call) tokens.insert(NewToken());
  EXPECT_EQ(tokens.size(), 1000u);
  EXPECT_EQ(tokens.count(0), 0u);
}

// What two processes with the same memory and the same count of calls say.
TEST(RequestId, ForkedChildren_Differ) {
  int pipes[2][2];
  std::string ids[2];
  for (int child = 0; child < 2; ++child) {
    ASSERT_EQ(pipe(pipes[child]), 0);
    const int out = pipes[child][1];
    testing::Child process([out] {
      const std::string id = NewRequestId();
      return write(out, id.data(), id.size()) == static_cast<ssize_t>(id.size()) ? 0 : 1;
    });
    ASSERT_EQ(process.Wait(), 0);
    ids[child].resize(32);
    ASSERT_EQ(read(pipes[child][0], ids[child].data(), 32), 32);
    close(pipes[child][0]);
    close(pipes[child][1]);
  }
  EXPECT_NE(ids[0], ids[1]);
}

}  // namespace
}  // namespace optshard
