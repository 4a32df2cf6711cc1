// What is common to the fuzzers: a command line, and somebody who shows what was being tried when
// the process died.
//   NAME [--seconds=N] [--seed=N]
#ifndef OPTSHARD_TESTS_FUZZ_FUZZER_MAIN_H_
#define OPTSHARD_TESTS_FUZZ_FUZZER_MAIN_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace optshard::testing {

// What is being tried, in memory that outlives the process which tries it. Bound to a thread.
class FuzzReport {
 public:
  FuzzReport();

  // What is beyond a mebibyte is left out.
  void Set(const std::string& text);
  const char* text() const { return text_; }

 private:
  char* const text_;
};

// Runs `fuzz` in a child process; it returns the exit code. Shows the report and the seed where
// that is not 0 or the child dies. Returns the exit code of main: 2 where the command line is
// wrong.
int FuzzerMain(
    int argc, char** argv,
    const std::function<int(uint64_t seed, absl::Duration time, FuzzReport& report)>& fuzz);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_FUZZ_FUZZER_MAIN_H_
