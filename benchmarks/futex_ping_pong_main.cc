// A limit: round trips between two processes that sleep by bare futexes on shared memory. What one
// process cannot tell another one faster by, where neither burns a core while it waits.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <system_error>

#include "benchmarks/ping_pong_options.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"

namespace optshard {
namespace {

// How often each has been told to go on; zero in a new file.
struct Table {
  std::atomic<uint32_t> told[2];
};

void ThrowErrno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

Table* MapTable(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) ThrowErrno("open");
  if (ftruncate(descriptor, sizeof(Table)) != 0) ThrowErrno("ftruncate");
  void* const memory =
      mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) ThrowErrno("mmap");
  close(descriptor);
  return static_cast<Table*>(memory);
}

void Tell(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Until it has been told `times` times.
void WaitFor(std::atomic<uint32_t>& word, uint32_t times) {
  for (uint32_t now = word.load(); now != times; now = word.load()) {
    syscall(SYS_futex, &word, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

CommandLine CommandLineOf(PingPongFlags& flags) {
  CommandLine line({"optshard-bench-ping-pong",
                    "One end of a ping-pong by futexes. run_bench.py drives it.",
                    {"optshard-bench-ping-pong --rank=0 --rendezvous=/tmp/table"}});
  AddPingPongOptions(line, "a file for both processes, which the first one creates", &flags);
  return line;
}

Contestant SetUp(const PingPongFlags& flags) {
  Table* const table = MapTable(flags.rendezvous);
  const int rank = flags.rank;
  const int steps = flags.steps;
  const auto trips = std::make_shared<uint32_t>(0);
  return {[table, rank, steps, trips] {
            for (int i = 0; i < steps; ++i) {
              ++*trips;
              if (rank == 0) Tell(table->told[1]);
              WaitFor(table->told[rank], *trips);
              if (rank == 1) Tell(table->told[0]);
            }
          },
          [trips]() -> std::map<std::string, double> {
            return {{"trips", *trips}};
          }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
