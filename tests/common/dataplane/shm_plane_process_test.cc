// Ranks as processes, of which one forks. The test's own process has no threads before its plane.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "benchmarks/file_rendezvous.h"
#include "common/dataplane/shm/shm_plane.h"
#include "gtest/gtest.h"
#include "tests/common/dataplane/plane_group.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

using testing::Child;

constexpr int kWorldSize = 2;

class ShmProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "optshard_shm_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(Rank rank) const {
    FileRendezvous rendezvous(folder_);
    ShmPlaneOptions options;
    options.rank = rank;
    options.world_size = kWorldSize;
    options.rendezvous = &rendezvous;
    options.deadline = FarDeadline();
    return CreateShmPlane(options);
  }

  // All ranks have come to it, each with its own letter.
  static absl::Status Meet(DataPlane& plane, StepNumber step) {
    const char mine = static_cast<char>('a' + plane.rank());
    std::string all(kWorldSize, '?');
    auto ticket = plane.AllGather({1, step, 0, StepPhase::kControl}, {}, &mine, all.data(), 1);
    if (!ticket.ok()) return ticket.status();
    absl::Status met = (*ticket)->Wait(FarDeadline());
    if (met.ok() && all != "ab") return absl::InternalError("gathered " + all);
    return met;
  }

  // A peer that meets twice and leaves in good order.
  int ServeAsRankOne() const {
    auto plane = Connect(1);
    if (!plane.ok()) return 1;
    if (!Meet(**plane, 1).ok()) return 2;
    if (!Meet(**plane, 2).ok()) return 3;
    return (*plane)->Close(FarDeadline()).ok() ? 0 : 4;
  }

  std::string folder_;
};

TEST_F(ShmProcesses, ForkedChildThatDestroysItsCopy_LeavesTheParentsPlaneWorking) {
  Child peer([this] { return ServeAsRankOne(); });
  auto plane = Connect(0);
  ASSERT_TRUE(plane.ok()) << plane.status();
  ASSERT_TRUE(Meet(**plane, 1).ok());
  Child copy([&] {
    plane->reset();
    return 0;
  });
  EXPECT_EQ(copy.Wait(), 0);
  const absl::Status met = Meet(**plane, 2);
  EXPECT_TRUE(met.ok()) << met;
  const absl::Status closed = (*plane)->Close(FarDeadline());
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_EQ(peer.Wait(), 0);
}

}  // namespace
}  // namespace optshard
