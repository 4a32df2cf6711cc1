// A limit: round trips between two processes over TCP, by nothing but send and recv on the threads
// that wait.
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/bench_flags.h"
#include "benchmarks/file_rendezvous.h"
#include "benchmarks/round_protocol.h"
#include "common/clock.h"
#include "common/dataplane/gloo/tcp_peers.h"

ABSL_FLAG(int, rank, 0, "0 serves, 1 returns");
ABSL_FLAG(int, world_size, 2, "two");
ABSL_FLAG(std::string, rendezvous, "", "an empty directory for both processes");
ABSL_FLAG(int, steps, 1, "round trips in a round");

namespace optshard {
namespace {

UniqueFd Connect(int rank) {
  FileRendezvous rendezvous(absl::GetFlag(FLAGS_rendezvous));
  GlooPlaneOptions options;
  options.rank = rank;
  options.world_size = 2;
  options.rendezvous = &rendezvous;
  options.deadline = Clock::Monotonic().Now() + absl::Seconds(60);
  absl::StatusOr<std::vector<UniqueFd>> connections = ConnectTcpPeers(options);
  if (!connections.ok()) throw std::runtime_error(connections.status().ToString());
  UniqueFd connection = std::move((*connections)[1 - rank]);
  if (fcntl(connection.get(), F_SETFL, 0) != 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl");
  }
  return connection;
}

void Expect(ssize_t bytes) {
  if (bytes != 1) throw std::system_error(errno, std::generic_category(), "the connection");
}

Contestant SetUp() {
  const int rank = absl::GetFlag(FLAGS_rank);
  const int steps = absl::GetFlag(FLAGS_steps);
  const auto connection = std::make_shared<UniqueFd>(Connect(rank));
  const auto trips = std::make_shared<int64_t>(0);
  return {[connection, rank, steps, trips] {
            for (int i = 0; i < steps; ++i, ++*trips) {
              char byte = 1;
              if (rank == 0) Expect(send(connection->get(), &byte, 1, MSG_NOSIGNAL));
              Expect(recv(connection->get(), &byte, 1, 0));
              if (rank == 1) Expect(send(connection->get(), &byte, 1, MSG_NOSIGNAL));
            }
          },
          [trips]() -> std::map<std::string, double> {
            return {{"trips", *trips}};
          }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::ParseBenchFlags(argc, argv, "One end of a ping-pong over TCP; run_bench.py drives it.");
  return optshard::ServeRounds(optshard::SetUp);
}
