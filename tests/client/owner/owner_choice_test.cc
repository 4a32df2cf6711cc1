// What the environment says about the owner, through the same calls that a trainer makes.
#include "client/owner/owner_choice.h"

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/node/node_rig.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using testing::NodeRig;
using testing::NodeTrainer;

// Sets a variable for as long as it lives, and those of a single rank.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : {"RANK", "WORLD_SIZE", name_}) unsetenv(name);
  }

 private:
  const char* const name_;
};

absl::StatusOr<std::unique_ptr<OwnerLink>> StartFromEnvironment() {
  absl::StatusOr<ShardedOptimizerOptions> options = ShardedOptimizerOptions::FromEnvironment();
  if (!options.ok()) return options.status();
  return StartOwner(*options, NodeTrainer::DefaultOptions("", 0, 1).spec);
}

TEST(OwnerChoice_AttachNamesASocket, TheServerThereHostsTheRank) {
  NodeRig rig(1);
  const Environment environment("OPTSHARD_ATTACH", absl::StrCat("unix:", rig.address()));
  const auto owner = StartFromEnvironment();
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_TRUE(testing::Await([&] { return rig.owners().Ready(); }));
}

TEST(OwnerChoice_AttachIsEmbedded, NoServerIsAsked) {
  NodeRig rig(1);
  const Environment environment("OPTSHARD_ATTACH", "embedded");
  const auto owner = StartFromEnvironment();
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_FALSE(rig.owners().Ready());
}

TEST(OwnerChoice_CoordinatorWhoseNameIsNeverKnown, IsAnErrorAfterTheJoinTimeout) {
  const Environment environment("OPTSHARD_COORDINATOR", "no-such-host.invalid:4700");
  auto options = ShardedOptimizerOptions::FromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  options->join_timeout = absl::Milliseconds(20);
  const absl::Status failed =
      StartOwner(*options, NodeTrainer::DefaultOptions("", 0, 1).spec).status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("no-such-host.invalid:4700 is not known"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("waited for"));
}

TEST(OwnerChoice_SameNameInTwoJobsOfAProcess, BothStartAndEndInAnyOrder) {
  const Environment environment("OPTSHARD_ATTACH", "embedded");
  auto first = StartFromEnvironment();
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = StartFromEnvironment();
  ASSERT_TRUE(second.ok()) << second.status();
  second->reset();
  EXPECT_TRUE((*first)->Stop(absl::Seconds(5)).ok());
  // The first one's view is gone with its part in the job; a third one has the place.
  EXPECT_TRUE(StartFromEnvironment().ok());
}

TEST(OwnerChoice_AttachIsNeither, IsRefusedShowingIt) {
  const Environment environment("OPTSHARD_ATTACH", "/run/optshard");
  const absl::Status status = StartFromEnvironment().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attach is \"/run/optshard\""));
}

TEST(OwnerChoice_UnknownPlane, IsRefusedShowingIt) {
  const Environment environment("OPTSHARD_PLANE", "carrier_pigeon");
  const absl::Status status = StartFromEnvironment().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("unknown data plane \"carrier_pigeon\""));
}

TEST(OwnerChoice_KnownPlane, IsTaken) {
  for (const char* plane : {"auto", "shm", "gloo"}) {
    const Environment environment("OPTSHARD_PLANE", plane);
    const auto owner = StartFromEnvironment();
    EXPECT_TRUE(owner.ok()) << plane << ": " << owner.status();
  }
}

}  // namespace
}  // namespace optshard
