#include "benchmarks/round_protocol.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace optshard {
namespace {

// What ServeRounds printed, by line, and what it returned.
struct Outcome {
  std::vector<nlohmann::json> lines;
  int status = 0;
};

Outcome Serve(const std::string& input, const std::function<Contestant()>& set_up) {
  std::istringstream in(input);
  std::ostringstream out;
  std::streambuf* const old_in = std::cin.rdbuf(in.rdbuf());
  std::streambuf* const old_out = std::cout.rdbuf(out.rdbuf());
  std::cin.clear();
  Outcome outcome;
  outcome.status = ServeRounds(set_up);
  std::cin.rdbuf(old_in);
  std::cout.rdbuf(old_out);
  std::istringstream printed(out.str());
  for (std::string line; std::getline(printed, line);) {
    outcome.lines.push_back(nlohmann::json::parse(line));
  }
  return outcome;
}

TEST(ServeRounds, GoAndCheck_RunAndAnswerInOrder) {
  int rounds = 0;
  const Outcome outcome = Serve("go\ngo\ncheck\n", [&rounds] {
    return Contestant{[&rounds] { ++rounds; },
                      [&rounds] {
                        return std::map<std::string, double>{{"rounds", rounds}};
                      }};
  });
  EXPECT_EQ(outcome.status, 0);
  ASSERT_EQ(outcome.lines.size(), 4u);
  EXPECT_EQ(outcome.lines[0], nlohmann::json({{"ready", true}}));
  EXPECT_LE(outcome.lines[1]["start_ns"], outcome.lines[1]["end_ns"]);
  EXPECT_LE(outcome.lines[1]["end_ns"], outcome.lines[2]["start_ns"]);
  EXPECT_EQ(outcome.lines[3], nlohmann::json({{"rounds", 2}}));
}

TEST(ServeRounds, SetUpThrows_TellsTheDriver) {
  const Outcome outcome =
      Serve("go\n", []() -> Contestant { throw std::runtime_error("nobody at the door"); });
  EXPECT_EQ(outcome.status, 1);
  ASSERT_EQ(outcome.lines.size(), 1u);
  EXPECT_EQ(outcome.lines[0]["error"], "nobody at the door");
}

TEST(ServeRounds, AfterRound_RunsBeforeTheAnswerAndIsNotMeasured) {
  std::vector<std::string> calls;
  const Outcome outcome = Serve("go\n", [&calls] {
    return Contestant{[&calls] { calls.emplace_back("round"); },
                      [] { return std::map<std::string, double>(); },
                      [&calls] {
                        calls.emplace_back("after");
                        throw std::runtime_error("no room for the next one");
                      }};
  });
  EXPECT_EQ(calls, (std::vector<std::string>{"round", "after"}));
  ASSERT_EQ(outcome.lines.size(), 2u);
  EXPECT_EQ(outcome.lines[1]["error"], "no room for the next one");
}

TEST(ServeRounds, NotMeasured_IsTakenOffTheRoundItIsIn) {
  int64_t longest_ns = 0;
  const Outcome outcome = Serve("go\ngo\n", [&longest_ns] {
    return Contestant{
        [&longest_ns] {
          const auto start = std::chrono::steady_clock::now();
          NotMeasured([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
          longest_ns = (std::chrono::steady_clock::now() - start).count();
        },
        [] { return std::map<std::string, double>(); }};
  });
  ASSERT_EQ(outcome.lines.size(), 3u);
  const int64_t measured =
      outcome.lines[2]["end_ns"].get<int64_t>() - outcome.lines[2]["start_ns"].get<int64_t>();
  EXPECT_GE(measured, 0);
  EXPECT_LT(measured, longest_ns);
  // Not the first round's, too.
  EXPECT_GE(outcome.lines[2]["start_ns"], outcome.lines[1]["end_ns"]);
}

TEST(ServeRounds, RoundThrows_TellsTheDriver) {
  const Outcome outcome = Serve("go\ngo\n", [] {
    return Contestant{[] { throw std::runtime_error("torn"); },
                      [] { return std::map<std::string, double>(); }};
  });
  EXPECT_EQ(outcome.status, 1);
  ASSERT_EQ(outcome.lines.size(), 2u);
  EXPECT_EQ(outcome.lines[1]["error"], "torn");
}

TEST(ServeRounds, UnknownCommand_IsAnErrorThatNamesIt) {
  const Outcome outcome = Serve("dance\n", [] { return Contestant(); });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.lines.back()["error"], "no command \"dance\": go, check");
}

}  // namespace
}  // namespace optshard
