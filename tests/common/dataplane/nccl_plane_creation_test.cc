// What keeps ranks from connecting over NCCL, and who is told.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/dataplane/nccl/nccl_plane.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/common/dataplane/nccl_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Each rank's answer to Create.
std::vector<absl::Status> CreateAll(NcclGroup& group, int world_size, const Change& change) {
  std::vector<absl::Status> answers(world_size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      NcclPlaneOptions options = group.OptionsOf(rank);
      change(options);
      answers[rank] = group.Make(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

TEST(NcclPlane, Create_TwoRanksOnOneGpu_AllAreToldWhich) {
  NcclGroup group(3);
  for (const absl::Status& answer : CreateAll(group, 3, [&](NcclPlaneOptions& options) {
         if (options.rank == 2) options.device = group.devices().Add("cuda:0", "GPU-0");
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(answer)) << answer;
    EXPECT_THAT(std::string(answer.message()),
                AllOf(HasSubstr("ranks 0 and 2 are on one GPU"), HasSubstr("GPU-0")));
  }
}

TEST(NcclPlane, Create_ARankHasNoDriver_AllAreToldWhich) {
  NcclGroup group(3);
  for (const absl::Status& answer : CreateAll(group, 3, [](NcclPlaneOptions& options) {
         if (options.rank == 1) {
           options.device = absl::FailedPreconditionError("no CUDA driver on this host");
         }
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(answer)) << answer;
    EXPECT_THAT(std::string(answer.message()), HasSubstr("rank 1: no CUDA driver on this host"));
  }
}

TEST(NcclPlane, Create_OptionsOrVersionsDiffer_AllAreToldWhich) {
  const std::vector<std::pair<const char*, std::function<void(NcclGroup&, NcclPlaneOptions&)>>>
      kDifferences = {
          {"deterministic",
           [](NcclGroup&, NcclPlaneOptions& options) { options.deterministic = false; }},
          {"reduce_window_bytes",
           [](NcclGroup&, NcclPlaneOptions& options) { options.reduce_window_bytes = 2 << 20; }},
          {"version", [](NcclGroup& group, NcclPlaneOptions& options) {
             options.nccl = group.nccl().MakeApi(options.rank, 22007);
           }}};
  for (const auto& [what, make] : kDifferences) {
    NcclGroup group(2);
    for (const absl::Status& answer :
         CreateAll(group, 2, [&, make = make](NcclPlaneOptions& options) {
           if (options.rank == 1) make(group, options);
         })) {
      EXPECT_TRUE(errors::IsRanksDisagree(answer)) << answer;
      EXPECT_EQ(errors::RanksOf(answer), std::vector<Rank>{1}) << answer;
      EXPECT_THAT(std::string(answer.message()), HasSubstr(what));
    }
  }
}

TEST(NcclPlane, Create_WindowTooSmallOrTooManyRanks_IsRefused) {
  NcclGroup group(2);
  NcclPlaneOptions options = group.OptionsOf(0);
  options.reduce_window_bytes = 100;
  EXPECT_TRUE(absl::IsInvalidArgument(group.Make(options).status()));

  NcclGroup large(300);
  options = large.OptionsOf(0);
  options.reduce_window_bytes = size_t{64} << 20;
  const absl::Status refused = large.Make(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 256 ranks"));
}

// Of a rank that comes to the meeting and cannot connect, once all others are about to.
class Disconnected final : public NcclApi {
 public:
  explicit Disconnected(std::function<void()> await_others)
      : await_others_(std::move(await_others)) {}

  int version() const override { return 22809; }
  absl::StatusOr<std::string> NewUniqueId() override { return absl::InternalError("no network"); }
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(absl::string_view, Rank, int) override {
    await_others_();
    return absl::InternalError("no network");
  }
  absl::Status GroupStart() override { return absl::InternalError("no network"); }
  absl::Status GroupEnd() override { return absl::InternalError("no network"); }

 private:
  const std::function<void()> await_others_;
};

TEST(NcclPlane, Create_ARankCannotConnect_OthersNameIt) {
  NcclGroup group(3);
  const std::vector<absl::Status> answers = CreateAll(group, 3, [&](NcclPlaneOptions& options) {
    if (options.rank != 1) return;
    options.nccl = std::make_shared<Disconnected>([&] {
      EXPECT_TRUE(
          Eventually([&] { return group.nccl().HasConnected(0) && group.nccl().HasConnected(2); }));
    });
  });
  EXPECT_EQ(answers[1], absl::InternalError("no network"));
  for (const Rank rank : {0, 2}) {
    EXPECT_EQ(errors::RanksOf(answers[rank]), std::vector<Rank>{1}) << answers[rank];
    EXPECT_TRUE(Eventually([&] { return group.nccl().HasAborted(rank); }));
  }
}

}  // namespace
}  // namespace optshard
