// A member of a job as a process of its own, for coordinator_process_test.py: joins, says "active",
// then says "lost RANKS" and why when its group fails, or leaves when its input ends.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/strings/str_join.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/membership/coordinator_client_rpc.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

struct Flags {
  std::string coordinator;
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(30);
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"member",
                    "A member of a job for tests. It leaves when its input ends.",
                    {"member --coordinator=127.0.0.1:29500"}});
  line.Add("coordinator", &flags.coordinator, "address of the coordinator")
      .Value("HOST:PORT")
      .Required();
  line.Add("rank", &flags.rank, "this process's rank");
  line.Add("world-size", &flags.world_size, "number of ranks");
  line.Add("timeout", &flags.timeout, "to join");
  return line;
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Fail(const absl::Status& status) {
  Say(absl::StrCat("error ", status.ToString()));
  return 1;
}

int Main(const Flags& flags) {
  JoinRequest request = TestJoin(flags.rank, flags.world_size);
  request.request_id = "";
  request.pid = getpid();
  const auto client = MakeCoordinatorClient(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  const absl::Time deadline = Clock::Monotonic().Now() + flags.timeout;
  const auto session = (*client)->Join(request, deadline);
  if (!session.ok()) return Fail(session.status());
  (*session)->OnFailure([](const absl::Status& status) {
    Say(absl::StrCat("lost ", absl::StrJoin(errors::RanksOf(status), ","), " ", status.ToString()));
  });
  const auto plan = (*session)->WaitForPlan(deadline);
  if (!plan.ok()) return Fail(plan.status());
  Say("active");
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  const absl::Status left = (*session)->Leave(Clock::Monotonic().Now() + absl::Seconds(10));
  if (!left.ok()) return Fail(left);
  Say("left");
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  if (const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv)) return *end;
  return optshard::Main(flags);
}
