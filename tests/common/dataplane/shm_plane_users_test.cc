// Whom a rank shares its memory with: processes of its own user only, whichever end connects.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/dataplane/shm/shm_plane.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/dataplane/plane_group.h"
#include "tests/testing/fake_rendezvous.h"
#include "tests/testing/other_user.h"

namespace optshard {
namespace {

using testing::FakeRendezvous;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<DataPlane>> Connect(Rank rank, FakeRendezvous& rendezvous) {
  ShmPlaneOptions options;
  options.rank = rank;
  options.world_size = 2;
  options.rendezvous = &rendezvous;
  options.deadline = FarDeadline();
  return CreateShmPlane(options);
}

TEST(ShmPlaneUsers_AnotherUserListens_IsRefused, AndGetsNoDescriptors) {
  if (!testing::KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  const LocalAddress address = absl::StrCat("@optshard_test_plane_", getpid());
  testing::ForeignListener stranger(address);
  FakeRendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Put("shm/0", address).ok());
  const absl::Status status = Connect(1, rendezvous).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("user 65534"));
  EXPECT_EQ(stranger.WhatCame(), "");
}

TEST(ShmPlaneUsers_AnotherUserConnects_IsNotListenedTo, AndTheRanksMeet) {
  if (!testing::KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  int to_child[2];
  int from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);
  char name[128] = {};
  testing::Child stranger([&] {
    if (read(to_child[0], name, sizeof name - 1) <= 0 || !testing::BecomeOtherUser()) return 1;
    const auto socket = testing::ConnectUnchecked(name);
    if (socket == nullptr) return 2;
    // A rank that reads it takes it for a bad greeting and gives up. It may have hung up already.
    socket->Send("hello", {}, FarDeadline()).IgnoreError();
    if (write(from_child[1], "x", 1) != 1) return 3;
    return absl::IsUnavailable(socket->Receive(FarDeadline()).status()) ? 0 : 4;
  });
  close(from_child[1]);  // so that a stranger that fails is noticed
  FakeRendezvous rendezvous;
  absl::StatusOr<std::unique_ptr<DataPlane>> first = absl::UnknownError("not made yet");
  std::thread rank0([&] { first = Connect(0, rendezvous); });
  const std::string address = *rendezvous.Get("shm/0", FarDeadline());
  EXPECT_EQ(write(to_child[1], address.data(), address.size()),
            static_cast<ssize_t>(address.size()));
  // Rank 1 comes when the stranger is in the queue before it.
  char byte;
  EXPECT_EQ(read(from_child[0], &byte, 1), 1);
  absl::StatusOr<std::unique_ptr<DataPlane>> second = Connect(1, rendezvous);
  rank0.join();
  EXPECT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(stranger.Wait(), 0);
}

}  // namespace
}  // namespace optshard
