// The process table of a real job: processes below this one, and what they write.
#ifndef OPTSHARD_TOOLS_LAUNCHER_LOCAL_PROCESSES_H_
#define OPTSHARD_TOOLS_LAUNCHER_LOCAL_PROCESSES_H_

#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/link/unique_fd.h"
#include "common/process/child_process.h"
#include "common/process/process_end.h"
#include "tools/launcher/output_queue.h"
#include "tools/launcher/prefixed_lines.h"
#include "tools/launcher/process_table.h"
#include "tools/launcher/role.h"

namespace optshard {

// Every process leads a group of its own, reads nothing from stdin, and ends with this one; what it
// leaves behind is killed when it has ended. This process must adopt orphans (descendants.h), and
// have no children but these. Bound to the thread that constructs it.
class LocalProcesses final : public ProcessTable {
 public:
  struct Command {
    std::vector<std::string> words;
    absl::optional<std::vector<std::string>> environment;  // nullopt: this process's
  };
  struct Options {
    std::function<Command(const Role& role, int life)> command;
    OutputQueue* output = nullptr;  // gets the lines of all processes; must live as long
    bool coloured_output = false;
    bool coloured_error = false;
  };
  explicit LocalProcesses(Options options);

  absl::StatusOr<pid_t> Start(const Role& role, int life) override;
  void Signal(const Role& role, int signal) override;
  int KillAll() override;

  // Adds what becomes readable when a process writes.
  void AddTo(std::vector<pollfd>& descriptors) const;
  // Passes on what there is to read.
  void Read();
  // Processes that have ended since the last call. All that they wrote is passed on.
  std::vector<std::pair<Role, ProcessEnd>> Reap();

  // The last lines that the role's last process wrote to stderr.
  std::vector<std::string> LastLines(const Role& role) const;

 private:
  struct Stream {
    UniqueFd pipe;
    int descriptor;  // where its lines go
    PrefixedLines lines;
  };
  struct Process {
    std::unique_ptr<ChildProcess> child;
    std::vector<Stream> streams;  // stdout, stderr
  };

  void ReadFrom(Stream& stream);
  ChildProcess* ChildOf(pid_t pid);  // null where it is none of the table
  ProcessEnd Close(Process& process);

  const Options options_;
  UniqueFd nothing_;  // /dev/null
  std::map<Role, Process> processes_;
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_LOCAL_PROCESSES_H_
