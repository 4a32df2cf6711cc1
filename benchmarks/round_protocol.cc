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

// Of the round that runs. One thread runs rounds.
int64_t not_measured_ns = 0;

void Obey(const Contestant& contestant, const std::string& command) {
  if (command == "go") {
    not_measured_ns = 0;
    const int64_t start = NowNs();
    contestant.one_round();
    const int64_t end = NowNs();
    if (contestant.after_round) contestant.after_round();
    Say({{"start_ns", start + not_measured_ns}, {"end_ns", end}});
  } else if (command == "check") {
    Say(contestant.check());
  } else {
    throw std::invalid_argument("no command \"" + command + "\": go, check");
  }
}

}  // namespace

void NotMeasured(const std::function<void()>& work) {
  const int64_t start = NowNs();
  work();
  not_measured_ns += NowNs() - start;
}

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
