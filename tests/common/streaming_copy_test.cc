#include "common/streaming_copy.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(StreamingCopy_AnySizeAndAlignment, CopiesAllAndNothingElse) {
  for (const size_t bytes : {0, 1, 63, 64, 1000, 1 << 18, (1 << 18) + 63, (1 << 20) + 1}) {
    for (const size_t to_offset : {0, 4, 16}) {
      for (const size_t from_offset : {0, 1, 16}) {
        std::vector<char> from(bytes + 64);
        for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 31 + i / 256);
        std::vector<char> to(bytes + 64, 'x');
        StreamingCopy(to.data() + to_offset, from.data() + from_offset, bytes);
        EXPECT_EQ(std::memcmp(to.data() + to_offset, from.data() + from_offset, bytes), 0);
        for (size_t i = 0; i < to_offset; ++i) ASSERT_EQ(to[i], 'x');
        for (size_t i = to_offset + bytes; i < to.size(); ++i) ASSERT_EQ(to[i], 'x');
      }
    }
  }
}

TEST(StreamingCopy_OfNothing, TakesNullPointers) { StreamingCopy(nullptr, nullptr, 0); }

}  // namespace
}  // namespace optshard
