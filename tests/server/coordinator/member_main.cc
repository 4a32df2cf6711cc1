// A member of a job as a process of its own, for coordinator_process_test.py: joins, says "active",
// then says "lost RANKS" and why when its group fails, or leaves when its input ends.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/membership/coordinator_client_rpc.h"
#include "tests/server/coordinator/join_requests.h"

ABSL_FLAG(std::string, coordinator, "", "HOST:PORT");
ABSL_FLAG(int, rank, 0, "");
ABSL_FLAG(int, world_size, 1, "");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(30), "to join");

namespace optshard {
namespace {

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Fail(const absl::Status& status) {
  Say(absl::StrCat("error ", status.ToString()));
  return 1;
}

int Main() {
  JoinRequest request = TestJoin(absl::GetFlag(FLAGS_rank), absl::GetFlag(FLAGS_world_size));
  request.request_id = "";
  request.pid = getpid();
  const auto client = MakeCoordinatorClient(absl::GetFlag(FLAGS_coordinator));
  if (!client.ok()) return Fail(client.status());
  const absl::Time deadline = Clock::Monotonic().Now() + absl::GetFlag(FLAGS_timeout);
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
  absl::ParseCommandLine(argc, argv);
  return optshard::Main();
}
