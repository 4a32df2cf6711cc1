#include "benchmarks/file_rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "common/clock.h"

namespace optshard {
namespace {

std::string EmptyDirectory() {
  std::string name = ::testing::TempDir() + "/rendezvous-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

TEST(FileRendezvous, KeyWithSlashes_IsFoundByAnother) {
  const std::string directory = EmptyDirectory();
  FileRendezvous one(directory), other(directory);
  ASSERT_TRUE(one.Put("a/1", std::string("x\0y", 3)).ok());
  const auto value = other.Get("a/1", absl::InfinitePast());
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, std::string("x\0y", 3));
}

TEST(FileRendezvous, KeyGivenTwice_OnlyTheSameValueIsTaken) {
  FileRendezvous rendezvous(EmptyDirectory());
  ASSERT_TRUE(rendezvous.Put("key", "x").ok());
  EXPECT_TRUE(rendezvous.Put("key", "x").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(rendezvous.Put("key", "y")));
  EXPECT_EQ(*rendezvous.Get("key", absl::InfinitePast()), "x");
}

TEST(FileRendezvous, KeyThatNeverComes_TimesOutNamingIt) {
  FileRendezvous rendezvous(EmptyDirectory());
  const auto value = rendezvous.Get("lost", Clock::Monotonic().Now());
  EXPECT_TRUE(absl::IsDeadlineExceeded(value.status()));
  EXPECT_NE(value.status().message().find("the key \"lost\""), absl::string_view::npos);
}

TEST(FileRendezvous, KeyThatComesLater_IsWaitedFor) {
  FileRendezvous rendezvous(EmptyDirectory());
  std::thread late([&rendezvous] { EXPECT_TRUE(rendezvous.Put("key", "x").ok()); });
  const auto value = rendezvous.Get("key", Clock::Monotonic().Now() + absl::Seconds(30));
  late.join();
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, "x");
}

}  // namespace
}  // namespace optshard
