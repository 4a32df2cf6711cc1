// Memory of a GPU between processes, some of which are killed. The process of the tests itself
// never uses the GPU: a child that is forked after that could not.
#include "common/cuda/exported_memory.h"

#include <cuda_runtime_api.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/link/local_socket.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {
namespace {

constexpr size_t kBytes = 5 << 20;  // no whole number of pages

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(30); }

struct SocketPair {
  SocketPair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    here = std::make_unique<LocalSocket>(UniqueFd(fds[0]));
    there = std::make_unique<LocalSocket>(UniqueFd(fds[1]));
  }
  std::unique_ptr<LocalSocket> here, there;
};

// Exit codes of children, so that a failure says where.
enum Failure { kNone = 0, kMakes = 10, kExports, kSends, kReceives, kImports, kReads, kWrites };

// Makes memory full of `byte`, sends its descriptor, and lives until it is killed.
int MakeAndSend(LocalSocket& socket, int byte) {
  const auto memory = ExportedMemory::Create(0, kBytes);
  if (!memory.ok()) return kMakes;
  if (cudaMemset(memory->data(), byte, kBytes) != cudaSuccess) return kWrites;
  if (cudaDeviceSynchronize() != cudaSuccess) return kWrites;
  const auto descriptor = memory->Export();
  if (!descriptor.ok()) return kExports;
  if (!socket.Send("made", {descriptor->get()}, Soon()).ok()) return kSends;
  static_cast<void>(socket.Receive(Soon()));  // nothing comes
  return kNone;
}

// Maps what `descriptor` is of, expects it to be full of `expected` and fills it with `byte`.
int Refill(int descriptor, int expected, int byte) {
  const auto memory = ExportedMemory::Import(0, descriptor, kBytes);
  if (!memory.ok()) return kImports;
  std::vector<char> seen(kBytes);
  if (cudaMemcpy(seen.data(), memory->data(), kBytes, cudaMemcpyDeviceToHost) != cudaSuccess) {
    return kReads;
  }
  if (seen != std::vector<char>(kBytes, static_cast<char>(expected))) return kReads;
  if (cudaMemset(memory->data(), byte, kBytes) != cudaSuccess) return kWrites;
  return cudaDeviceSynchronize() == cudaSuccess ? kNone : kWrites;
}

int ReceiveAndRefill(LocalSocket& socket, int expected, int byte) {
  const auto message = socket.Receive(Soon());
  if (!message.ok() || message->descriptors.size() != 1) return kReceives;
  return Refill(message->descriptors[0].get(), expected, byte);
}

TEST(ExportedMemoryTest, MakerIsKilled_DescriptorKeepsTheMemory) {
  SocketPair to_maker;
  Child maker([&] { return MakeAndSend(*to_maker.there, 7); });
  auto message = to_maker.here->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_EQ(message->descriptors.size(), 1u);
  maker.Kill();
  // Only this process has a descriptor now, and it has never used the GPU: as a keeper.
  for (const int expected : {7, 8}) {
    Child successor([&] { return Refill(message->descriptors[0].get(), expected, expected + 1); });
    EXPECT_EQ(successor.Wait(), kNone) << "round " << expected;
  }
}

TEST(ExportedMemoryTest, TwoProcessesAtOnce_SeeWhatTheOtherWrites) {
  SocketPair to_maker;
  SocketPair to_user;
  Child maker([&] { return MakeAndSend(*to_maker.there, 3); });
  Child user([&] { return ReceiveAndRefill(*to_user.there, 3, 4); });
  auto message = to_maker.here->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_EQ(message->descriptors.size(), 1u);
  ASSERT_TRUE(to_user.here->Send("made", {message->descriptors[0].get()}, Soon()).ok());
  EXPECT_EQ(user.Wait(), kNone);
  // The maker still has it mapped.
  Child reader([&] { return Refill(message->descriptors[0].get(), 4, 5); });
  EXPECT_EQ(reader.Wait(), kNone);
}

TEST(ExportedMemoryTest, AnotherSizeThanTheMemorys_Refused) {
  Child child([] {
    const auto memory = ExportedMemory::Create(0, kBytes);
    if (!memory.ok()) return 1;
    const auto descriptor = memory->Export();
    if (!descriptor.ok()) return 2;
    for (const size_t bytes : {size_t{0}, kBytes + (size_t{64} << 20), SIZE_MAX}) {
      const auto imported = ExportedMemory::Import(0, descriptor->get(), bytes);
      if (imported.status().code() != absl::StatusCode::kInvalidArgument) return 3;
    }
    return ExportedMemory::Import(0, descriptor->get(), kBytes).ok() ? 0 : 4;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ExportedMemoryTest, NotADevicesMemory_Refused) {
  Child child([] {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 1;
    const auto memory = ExportedMemory::Import(0, fds[0], kBytes);
    return memory.status().code() == absl::StatusCode::kInvalidArgument ? 0 : 2;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ExportedMemoryTest, MoreThanThereIs_RefusedAndNothingIsLeaked) {
  Child child([] {
    const auto much = ExportedMemory::Create(0, size_t{1} << 45);
    if (much.status().code() != absl::StatusCode::kResourceExhausted) return 1;
    size_t before = 0, after = 0, total = 0;
    if (cudaMemGetInfo(&before, &total) != cudaSuccess) return 2;
    for (int k = 0; k < 50; ++k) {
      if (!ExportedMemory::Create(0, 64 << 20).ok()) return 3;
    }
    if (cudaMemGetInfo(&after, &total) != cudaSuccess) return 4;
    return before - after < (64 << 20) ? 0 : 5;
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace optshard::testing
