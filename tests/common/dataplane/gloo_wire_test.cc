// What the mesh relies on of Gloo itself.
#include "common/dataplane/gloo/gloo_wire.h"

#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/link/process_stat.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

// A peer's address that is higher than this one's: Gloo then waits for the peer to connect.
std::string HigherThan(const std::string& address) {
  sockaddr_in name;
  std::memcpy(&name, address.data(), sizeof(name));
  name.sin_port = 0xffff;
  std::string higher = address;
  std::memcpy(&higher[0], &name, sizeof(name));
  return higher;
}

TEST(GlooWire, CutWhileConnecting_EndsTheWait) {
  GlooWire::Options options;
  options.world_size = 2;
  options.network = "127.0.0.1";
  options.connect_timeout = absl::Seconds(20);
  const absl::StatusOr<std::unique_ptr<GlooWire>> wire = MakeGlooWire(options);
  ASSERT_TRUE(wire.ok()) << wire.status();
  const absl::StatusOr<std::string> own = (*wire)->Listen(1);
  ASSERT_TRUE(own.ok()) << own.status();
  const absl::Time start = Clock::Monotonic().Now();
  absl::Status status;
  std::atomic<pid_t> thread{0};
  std::thread connecting([&] {
    thread = static_cast<pid_t>(syscall(SYS_gettid));
    status = (*wire)->Connect(1, HigherThan(*own));
  });
  // Until it waits.
  while (thread == 0 || StatOfProcess(thread).value_or(ProcessStat()).state != 'S') {
    std::this_thread::yield();
  }
  (*wire)->Cut();
  connecting.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(10));
}

}  // namespace
}  // namespace optshard
