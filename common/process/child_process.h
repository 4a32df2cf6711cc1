// A child process that never outlives this one.
#ifndef OPTSHARD_COMMON_PROCESS_CHILD_PROCESS_H_
#define OPTSHARD_COMMON_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/process/process_end.h"

namespace optshard {

// The number under which the child finds the descriptor Options::link.
constexpr int kLinkDescriptor = 3;

// The child leads a process group of its own, so that Ctrl-C in a terminal reaches only the parent.
// The kernel kills the child when the thread that started it ends. Bound to that thread.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> command;  // the path of the binary, then its arguments
    int link = -1;                     // a descriptor that the child gets as kLinkDescriptor
    int input = -1;                    // descriptor for stdin; -1: this process's
    int output = -1;                   // descriptor for stdout; -1: this process's
    int error = -1;                    // descriptor for stderr; -1: as `output`
    // "NAME=VALUE"; nullopt: this process's.
    absl::optional<std::vector<std::string>> environment;
  };

  // NOT_FOUND where the binary cannot be executed; INTERNAL where the kernel starts no process. A
  // child that turns out not to be a program says so on its stderr, and ends with 127.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const Options& options);

  // Sends SIGKILL where the child still runs, and waits for its end.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // A descriptor for poll(), which becomes readable when the child has ended.
  int descriptor() const { return descriptor_; }

  // Does nothing once the child has ended.
  void Signal(int signal);
  // The same for the child's process group, which is the child and those that it started. Once the
  // child is reaped it does nothing; before that it also reaches those whom the child left behind.
  void SignalGroup(int signal);

  // How the child has ended; nullopt while it runs. Reaps it.
  absl::optional<ProcessEnd> end();
  // The exit code of the child, or 128 + N where signal N ended it; nullopt while it runs.
  absl::optional<int> exit_code();

  // Waits for the exit code. The deadline is in the time of absl::Now(). DEADLINE_EXCEEDED naming
  // the process where it still runs then.
  absl::StatusOr<int> Wait(absl::Time deadline);

 private:
  ChildProcess(pid_t pid, int descriptor, std::string name)
      : pid_(pid), descriptor_(descriptor), name_(std::move(name)) {}

  const pid_t pid_;
  const int descriptor_;
  const std::string name_;
  absl::optional<ProcessEnd> end_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PROCESS_CHILD_PROCESS_H_
