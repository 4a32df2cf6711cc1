#include "tests/testing/in_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace optshard::testing {

Child::Child(const std::function<int()>& body) {
  pid_ = fork();
  if (pid_ < 0) {
    std::perror("fork");
    std::abort();
  }
  if (pid_ != 0) return;
  // Nothing of it outlives the test, and a death that is wanted leaves no core.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGSEGV, SIG_DFL);
  signal(SIGBUS, SIG_DFL);
  _exit(body());
}

Child::~Child() {
  if (reaped_) return;
  Kill();
  Wait();
}

int Child::Wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void Child::Kill() { kill(pid_, SIGKILL); }

}  // namespace optshard::testing
