// A limit: bytes that two processes send to each other over TCP, both at once, by nothing but send
// and recv.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "benchmarks/file_rendezvous.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/dataplane/gloo/tcp_peers.h"

namespace optshard {
namespace {

constexpr int64_t kMostAtOnce = 1 << 20;

struct Flags {
  int rank = 0;
  int world_size = 2;
  std::string rendezvous;
  std::string network = "lo";
  int64_t bytes = 320'000'000;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-bench-tcp-stream",
       "One of two processes that stream bytes to each other over TCP. run_bench.py drives it.",
       {"optshard-bench-tcp-stream --rank=0 --rendezvous=/tmp/empty"}});
  line.Add("rank", &flags.rank, "0 or 1");
  line.Add("world-size", &flags.world_size, "always 2");
  line.Add("rendezvous", &flags.rendezvous, "an empty directory for both processes")
      .Value("PATH")
      .Required();
  line.Add("network", &flags.network, "an interface, or an address of one");
  line.Add("bytes", &flags.bytes, "that each of them sends in a round").AtLeast(1);
  return line;
}

UniqueFd Connect(const Flags& flags) {
  FileRendezvous rendezvous(flags.rendezvous);
  GlooPlaneOptions options;
  options.rank = flags.rank;
  options.world_size = 2;
  options.rendezvous = &rendezvous;
  options.network = flags.network;
  options.deadline = Clock::Monotonic().Now() + absl::Seconds(60);
  absl::StatusOr<std::vector<UniqueFd>> connections = ConnectTcpPeers(options);
  if (!connections.ok()) throw std::runtime_error(connections.status().ToString());
  UniqueFd connection = std::move((*connections)[1 - flags.rank]);
  if (fcntl(connection.get(), F_SETFL, 0) != 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl");
  }
  return connection;
}

class Stream {
 public:
  explicit Stream(const Flags& flags)
      : flags_(flags), connection_(Connect(flags)), sent_(kMostAtOnce), received_(kMostAtOnce) {}

  void OneRound() {
    std::string failed;
    std::thread sender([&] {
      int64_t left = flags_.bytes;
      while (left > 0) {
        const ssize_t bytes =
            send(connection_.get(), sent_.data(), std::min(left, kMostAtOnce), MSG_NOSIGNAL);
        if (bytes <= 0) break;
        left -= bytes;
      }
      if (left > 0) failed = "send: the connection has failed";
    });
    int64_t left = flags_.bytes;
    while (left > 0) {
      const ssize_t bytes =
          recv(connection_.get(), received_.data(), std::min(left, kMostAtOnce), 0);
      if (bytes <= 0) break;
      left -= bytes;
    }
    sender.join();
    if (left > 0) failed = "recv: the connection has failed";
    if (!failed.empty()) throw std::runtime_error(failed);
    total_ += flags_.bytes;
  }

  std::map<std::string, double> Check() const { return {{"bytes", static_cast<double>(total_)}}; }

 private:
  const Flags flags_;
  const UniqueFd connection_;
  const std::vector<char> sent_;
  std::vector<char> received_;
  int64_t total_ = 0;
};

Contestant SetUp(const Flags& flags) {
  const auto stream = std::make_shared<Stream>(flags);
  return {[stream] { stream->OneRound(); }, [stream] { return stream->Check(); }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
