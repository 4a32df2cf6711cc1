// The options of a benchmark's program that is one end of a ping-pong between two processes.
#ifndef OPTSHARD_BENCHMARKS_PING_PONG_OPTIONS_H_
#define OPTSHARD_BENCHMARKS_PING_PONG_OPTIONS_H_

#include <string>

#include "common/cli/command_line.h"

namespace optshard {

// Values of the options; AddPingPongOptions says what each means.
struct PingPongFlags {
  int rank = 0;
  int world_size = 2;
  std::string rendezvous;
  int steps = 1;
};

// `rendezvous` says on the help page what the two processes meet at.
void AddPingPongOptions(CommandLine& line, const std::string& rendezvous, PingPongFlags* flags);

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_PING_PONG_OPTIONS_H_
