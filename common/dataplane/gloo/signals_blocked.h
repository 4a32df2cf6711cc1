// Keeps signals away from the data plane's threads: they are for those of the program.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_SIGNALS_BLOCKED_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace optshard {

// Threads made during its life take no signals. Bound to a thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_SIGNALS_BLOCKED_H_
