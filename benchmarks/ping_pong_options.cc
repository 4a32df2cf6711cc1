#include "benchmarks/ping_pong_options.h"

namespace optshard {

void AddPingPongOptions(CommandLine& line, const std::string& rendezvous, PingPongFlags* flags) {
  line.Add("rank", &flags->rank, "0 serves, 1 returns");
  line.Add("world-size", &flags->world_size, "always 2");
  line.Add("rendezvous", &flags->rendezvous, rendezvous).Value("PATH").Required();
  line.Add("steps", &flags->steps, "round trips in a round").AtLeast(1);
}

}  // namespace optshard
