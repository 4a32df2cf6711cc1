// How a process ended.
#ifndef OPTSHARD_COMMON_PROCESS_PROCESS_END_H_
#define OPTSHARD_COMMON_PROCESS_PROCESS_END_H_

#include <string>

namespace optshard {

struct ProcessEnd {
  int exit_code = 0;  // 0 where a signal ended it
  int signal = 0;     // 0 where it exited

  bool ok() const { return exit_code == 0 && signal == 0; }
  // As shells have it: 128 + the signal.
  int shell_code() const { return signal != 0 ? 128 + signal : exit_code; }
};

// Of what waitpid() stored.
ProcessEnd ProcessEndOf(int wait_status);

// "SIGKILL"; "signal 40" for one without a name.
std::string SignalName(int signal);

// "exit code 3" or "SIGKILL".
std::string ToString(const ProcessEnd& end);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PROCESS_PROCESS_END_H_
