// A contestant's end of the round protocol, as peers/round_protocol.py: one process a rank, driven
// by run_bench.py over stdin and stdout. The process prints one JSON object a line:
//   {"ready": true}                        once, when it is set up
//   {"start_ns": ..., "end_ns": ...}       for each line "go": one round, on the monotonic clock
//   {...}                                  for each line "check": what the rounds have led to
//   {"error": "..."}                       instead of any of these, and the process ends
#ifndef OPTSHARD_BENCHMARKS_ROUND_PROTOCOL_H_
#define OPTSHARD_BENCHMARKS_ROUND_PROTOCOL_H_

#include <functional>
#include <map>
#include <string>

#include "common/cli/command_line.h"

namespace optshard {

struct Contestant {
  // Runs one round; returns when this rank has finished it.
  std::function<void()> one_round;
  // What the rounds have led to.
  std::function<std::map<std::string, double>()> check;
  // After each round, and not measured: makes the next one possible. May be null.
  std::function<void()> after_round = nullptr;
};

// Within a round, what does not count: its time is taken off this rank's round.
void NotMeasured(const std::function<void()>& work);

// Sets a contestant up and runs its rounds until the input ends. What set-up or rounds throw (any
// std::exception) goes to the driver. Returns the exit status of the process.
int ServeRounds(const std::function<Contestant()>& set_up);

// The whole of a contestant's main: reads the flags that `command_line` declares, then serves.
template <typename Flags>
int RunContestant(int argc, char** argv, CommandLine (*command_line)(Flags&),
                  Contestant (*set_up)(const Flags&)) {
  Flags flags;
  if (const auto end = command_line(flags).ParseOrEnd(argc, argv)) return *end;
  return ServeRounds([&] { return set_up(flags); });
}

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_ROUND_PROTOCOL_H_
