// The NCCL plane over NCCL itself: two processes, which share one GPU. NCCL allows that to
// processes that it takes for those of two hosts, whose messages then go over sockets: for the
// functions, not for speed. The process of the tests itself never uses the GPU.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/file_rendezvous.h"
#include "common/clock.h"
#include "common/cuda/cuda_memory.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/exported_memory.h"
#include "common/dataplane/nccl/cuda_device.h"
#include "common/dataplane/nccl/nccl_library.h"
#include "common/dataplane/nccl/nccl_plane.h"
#include "common/dataplane/shm/shm_plane.h"
#include "common/dataplane/tree_average.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/common/dataplane/ranks_on_one_gpu.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

using testing::Child;

constexpr int kWorldSize = 2;
constexpr int64_t kElements = 3000001;
constexpr size_t kBytes = kElements * sizeof(float);
const char kGpu[] = "cuda:0";

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(40); }

// Numbers whose sums depend on how they are rounded.
std::vector<float> NumbersOf(Rank rank) {
  std::vector<float> numbers(kElements);
  uint32_t state = 12345 + static_cast<uint32_t>(rank);
  for (float& number : numbers) {
    state = state * 1664525 + 1013904223;
    number = (static_cast<float>(state >> 8) - 8388608.0f) * 1e-7f;
  }
  return numbers;
}

absl::Status CopyIn(const std::vector<float>& from, void* to) {
  return CudaStatus(cudaMemcpy(to, from.data(), kBytes, cudaMemcpyHostToDevice), "copying");
}

absl::Status Expect(const void* at, const std::vector<float>& expected, const std::string& what) {
  std::vector<float> seen(kElements);
  const cudaError_t error = cudaMemcpy(seen.data(), at, kBytes, cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return CudaStatus(error, what);
  for (int64_t i = 0; i < kElements; ++i) {
    if (seen[i] == expected[i]) continue;
    return absl::DataLossError(
        absl::StrCat(what, ": element ", i, " is ", seen[i], ", expected ", expected[i]));
  }
  return absl::OkStatus();
}

class Rig {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> Connect(const std::string& folder, Rank rank) {
    testing::TakeForHostOfItsOwn(rank);
    auto rig = std::make_unique<Rig>();
    FileRendezvous rendezvous(folder);
    ShmPlaneOptions of_host;
    of_host.rank = rank;
    of_host.world_size = kWorldSize;
    of_host.rendezvous = &rendezvous;
    of_host.deadline = Soon();
    auto host = CreateShmPlane(of_host);
    if (!host.ok()) return host.status();
    NcclPlaneOptions options;
    options.rank = rank;
    options.world_size = kWorldSize;
    options.rendezvous = &rendezvous;
    options.deadline = Soon();
    options.nccl = LoadNccl({});
    options.device = UseCudaDevice(0);
    options.reduce_window_bytes = 8 << 20;
    auto plane = NcclPlane::Create(options, *std::move(host));
    if (!plane.ok()) return plane.status();
    rig->plane = *std::move(plane);
    if (const absl::Status status = UseDevice(0); !status.ok()) return status;
    const cudaError_t error = cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return CudaStatus(error, "making a stream");
    return rig;
  }

  ExecutionContext context() const { return {kGpu, stream}; }

  // Waits for it by the stream, and for that.
  absl::Status Finish(absl::StatusOr<std::unique_ptr<Ticket>> ticket) const {
    if (!ticket.ok()) return ticket.status();
    absl::Status ordered = (*ticket)->OrderOn(context());
    if (!ordered.ok()) return ordered;
    return CudaStatus(cudaStreamSynchronize(stream), "waiting for a stream");
  }

  absl::Status Publish(StepNumber step, Rank owner, void* data) const {
    return Finish(plane->Publish({1, step, owner, StepPhase::kPublish}, context(), owner, {0, 1},
                                 data, kBytes));
  }

  absl::Status Average(StepNumber step, Rank owner, const void* contribution, void* result) const {
    Reduction reduction;
    reduction.owner = owner;
    reduction.members = {0, 1};
    reduction.group_sizes = {1, 1};
    reduction.divisor = 2;
    return Finish(plane->Reduce({1, step, owner, StepPhase::kReduce}, context(), reduction,
                                DType::kFloat32, contribution, result, kElements));
  }

  std::unique_ptr<DataPlane> plane;
  cudaStream_t stream = nullptr;
};

// Both ranks' part of a step: averages to each owner, into memory that could be exported, and what
// they make of it published, with the bits of the host's sums. Then votes, on host and device.
absl::Status TakeStep(const Rig& rig, Rank rank) {
  auto gradient = CudaMemory::OnDevice(kBytes);
  if (!gradient.ok()) return gradient.status();
  auto parameter = ExportedMemory::Create(0, kBytes);
  if (!parameter.ok()) return parameter.status();
  const std::vector<float> numbers[] = {NumbersOf(0), NumbersOf(1)};
  std::vector<float> average(kElements);
  ReduceGroups({1, 1}, 2, DType::kFloat32, {numbers[0].data(), numbers[1].data()}, 0, kElements,
               average.data());
  absl::Status status = CopyIn(numbers[rank], gradient->data());
  for (const Rank owner : {0, 1}) {
    if (status.ok()) status = rig.Average(1 + owner, owner, gradient->data(), parameter->data());
    if (status.ok() && rank == owner) status = Expect(parameter->data(), average, "the average");
    if (status.ok()) status = rig.Publish(1 + owner, owner, parameter->data());
    if (status.ok()) status = Expect(parameter->data(), average, "what was published");
    if (status.ok()) status = CopyIn(numbers[1 - rank], parameter->data());
  }
  if (!status.ok()) return status;
  const char mine = static_cast<char>('a' + rank);
  std::string all(kWorldSize, '?');
  auto vote = rig.plane->AllGather({1, 3, 0, StepPhase::kCommit}, {}, &mine, all.data(), 1);
  if (!vote.ok()) return vote.status();
  status = (*vote)->Wait(Soon());
  if (status.ok() && all != "ab") return absl::DataLossError("gathered " + all);
  return status;
}

int Report(const absl::Status& status, Rank rank) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
  return 1;
}

class NcclProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "optshard_nccl_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(NcclProcesses, StepOfTwoRanks_BitsOfTheHost) {
  const auto run = [&](Rank rank) {
    auto rig = Rig::Connect(folder_, rank);
    if (!rig.ok()) return Report(rig.status(), rank);
    absl::Status status = TakeStep(**rig, rank);
    if (status.ok()) status = (*rig)->plane->Close(Soon());
    return Report(status, rank);
  };
  Child other([&] { return run(1); });
  Child one([&] { return run(0); });
  EXPECT_EQ(one.Wait(), 0);
  EXPECT_EQ(other.Wait(), 0);
}

TEST_F(NcclProcesses, PeerIsKilledBeforeItsBroadcast_IsNamedInTime) {
  Child victim([&] {
    auto rig = Rig::Connect(folder_, 1);
    if (!rig.ok()) return Report(rig.status(), 1);
    const absl::Status status = TakeStep(**rig, 1);
    if (!status.ok()) return Report(status, 1);
    raise(SIGKILL);
    return 1;
  });
  Child survivor([&] {
    auto rig = Rig::Connect(folder_, 0);
    if (!rig.ok()) return Report(rig.status(), 0);
    absl::Status status = TakeStep(**rig, 0);
    if (!status.ok()) return Report(status, 0);
    auto memory = CudaMemory::OnDevice(kBytes);
    if (!memory.ok()) return Report(memory.status(), 0);
    const absl::Time started = Clock::Monotonic().Now();
    auto ticket = (*rig)->plane->Publish({1, 9, 1, StepPhase::kPublish}, (*rig)->context(), 1,
                                         {0, 1}, memory->data(), kBytes);
    status = ticket.ok() ? (*ticket)->Wait(Soon()) : ticket.status();
    const absl::Duration took = Clock::Monotonic().Now() - started;
    if (status.ok()) return Report(absl::InternalError("the broadcast of a dead rank came"), 0);
    if (errors::RanksOf(status) != std::vector<Rank>{1}) return Report(status, 0);
    if (took > absl::Seconds(10)) return Report(absl::InternalError("it took too long"), 0);
    std::fprintf(stderr, "rank 0 was told in %s: %s\n", absl::FormatDuration(took).c_str(),
                 status.ToString().c_str());
    return 0;
  });
  EXPECT_EQ(victim.Wait(), -SIGKILL);
  EXPECT_EQ(survivor.Wait(), 0);
}

}  // namespace
}  // namespace optshard
