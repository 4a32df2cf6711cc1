// A child process that never outlives this one.
#ifndef OPTSHARD_EXAMPLES_CHILD_PROCESS_H_
#define OPTSHARD_EXAMPLES_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace optshard {

// The file descriptor under which a child finds Options::link.
constexpr int kLinkDescriptor = 3;

// The child is the head of its own process group (a terminal's Ctrl-C reaches the parent alone,
// which then decides) and is killed by the kernel when the thread that started it ends. Bound to
// that thread.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> command;  // the first is the binary's path
    int link = -1;                     // a descriptor that the child gets as kLinkDescriptor
    int output = -1;                   // its stdout and stderr; -1: those of this process
  };

  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const Options& options);

  // SIGKILL, where it still runs.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Becomes readable when the child has ended: for poll().
  int descriptor() const { return descriptor_; }

  void Signal(int signal);

  // Its exit code, 128 + N where signal N ended it; nullopt while it runs.
  absl::optional<int> exit_code();

  // DEADLINE_EXCEEDED naming the process where it still runs.
  absl::StatusOr<int> Wait(absl::Time deadline);

 private:
  ChildProcess(pid_t pid, int descriptor, std::string name)
      : pid_(pid), descriptor_(descriptor), name_(std::move(name)) {}

  const pid_t pid_;
  const int descriptor_;
  const std::string name_;
  absl::optional<int> exit_code_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_CHILD_PROCESS_H_
