#include "common/digest.h"

#include <xxhash.h>

#include <string>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(Digest, Value_OfTextsAndNumbers_IsXxh3OfTheLittleEndianBytes) {
  const std::string bytes(
      "\x01\0\0\0\0\0\0\0d"               // the domain, with its length
      "\x04\x03\x02\x01\0\0\0\0"          // 0x01020304
      "\xfe\xff\xff\xff\xff\xff\xff\xff"  // -2
      "\x03\0\0\0\0\0\0\0a\0b",           // a text with a zero in it
      9 + 8 + 8 + 11);
  DigestBuilder digest("d");
  digest.AddInt(0x01020304).AddInt(-2).AddText(absl::string_view("a\0b", 3));
  EXPECT_EQ(digest.value(), XXH3_64bits(bytes.data(), bytes.size()));
}

TEST(Digest, Texts_CutElsewhere_Differ) {
  EXPECT_NE(DigestBuilder("d").AddText("ab").AddText("c").value(),
            DigestBuilder("d").AddText("a").AddText("bc").value());
  EXPECT_NE(DigestBuilder("d").AddText("").AddText("a").value(),
            DigestBuilder("d").AddText("a").AddText("").value());
}

TEST(Digest, Domains_Different_Differ) {
  EXPECT_NE(DigestBuilder("a").AddInt(1).value(), DigestBuilder("b").AddInt(1).value());
}

TEST(Digest, Value_AskedInBetween_ChangesNothing) {
  DigestBuilder digest("d");
  const uint64_t empty = digest.value();
  EXPECT_EQ(empty, digest.value());
  digest.AddInt(1);
  EXPECT_NE(empty, digest.value());
  EXPECT_EQ(digest.value(), DigestBuilder("d").AddInt(1).value());
}

TEST(Digest, TextInParts_IsTheSameText) {
  EXPECT_EQ(DigestBuilder("d").BeginText(5).AddPart("ab").AddPart("").AddPart("cde").value(),
            DigestBuilder("d").AddText("abcde").value());
}

}  // namespace
}  // namespace optshard
