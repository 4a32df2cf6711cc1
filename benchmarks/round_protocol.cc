#include "benchmarks/round_protocol.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace optshard {
namespace {

// CLOCK_MONOTONIC, whose origin all processes of a machine share.
int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Say(const nlohmann::json& message) { std::cout << message.dump() << '\n' << std::flush; }

void Obey(const Contestant& contestant, const std::string& command) {
  if (command == "go") {
    const int64_t start = NowNs();
    contestant.one_round();
    const int64_t end = NowNs();
    Say({{"start_ns", start}, {"end_ns", end}});
  } else if (command == "check") {
    Say(contestant.check());
  } else {
    throw std::invalid_argument("no command \"" + command + "\": go, check");
  }
}

}  // namespace

int ServeRounds(const std::function<Contestant()>& set_up) {
  try {
    const Contestant contestant = set_up();
    Say({{"ready", true}});
    std::string command;
    while (std::getline(std::cin, command)) Obey(contestant, command);
  } catch (const std::exception& error) {
    Say({{"error", error.what()}});
    return 1;
  }
  return 0;
}

}  // namespace optshard
