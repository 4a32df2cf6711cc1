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

#include "benchmarks/file_rendezvous.h"
#include "benchmarks/ping_pong_options.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/dataplane/gloo/tcp_peers.h"

namespace optshard {
namespace {

UniqueFd Connect(int rank, const std::string& directory) {
  FileRendezvous rendezvous(directory);
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

CommandLine CommandLineOf(PingPongFlags& flags) {
  CommandLine line({"optshard-bench-tcp-ping-pong",
                    "One end of a ping-pong over TCP. run_bench.py drives it.",
                    {"optshard-bench-tcp-ping-pong --rank=0 --rendezvous=/tmp/empty"}});
  AddPingPongOptions(line, "an empty directory for both processes", &flags);
  return line;
}

Contestant SetUp(const PingPongFlags& flags) {
  const int rank = flags.rank;
  const int steps = flags.steps;
  const auto connection = std::make_shared<UniqueFd>(Connect(rank, flags.rendezvous));
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
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
