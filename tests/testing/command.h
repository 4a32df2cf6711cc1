// Runs a program of this workspace to its end, for tests of what it prints and leaves behind.
#ifndef OPTSHARD_TESTS_TESTING_COMMAND_H_
#define OPTSHARD_TESTS_TESTING_COMMAND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/child_process.h"

namespace optshard::testing {

// Bound to a thread.
class Command {
 public:
  // The path of a target that the test has as data: "examples/optshard-recipe".
  static std::string Runfile(const std::string& path);

  explicit Command(const std::vector<std::string>& command);
  ~Command();

  // Reads on until the output has `text`; false where the program ended, or the deadline came,
  // before.
  bool WaitForOutput(const std::string& text, absl::Time deadline);

  // Its exit code, as ChildProcess::Wait, with all output read.
  absl::StatusOr<int> Wait(absl::Time deadline);

  ChildProcess& process() { return *process_; }
  const std::string& output() const { return output_; }

 private:
  bool ReadMore(absl::Time deadline);

  std::unique_ptr<ChildProcess> process_;
  int descriptor_ = -1;
  std::string output_;
};

// Makes this process the parent of whatever its children leave behind.
void AdoptOrphans();

// Whether all children of this process, adopted ones included, have ended by the deadline.
bool WaitForNoChildren(absl::Time deadline);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_COMMAND_H_
