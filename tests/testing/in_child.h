// A forked child that runs a function, for tests of what processes share.
#ifndef OPTSHARD_TESTS_TESTING_IN_CHILD_H_
#define OPTSHARD_TESTS_TESTING_IN_CHILD_H_

#include <sys/types.h>

#include <functional>

namespace optshard::testing {

// Bound to a thread. The process that forks should have no other threads then.
class Child {
 public:
  // Runs `body` in the child, which ends with what it returns, without destructors of statics and
  // without reports of sanitizers for signals it dies of.
  explicit Child(const std::function<int()>& body);
  // Kills it if it has not been waited for.
  ~Child();

  pid_t pid() const { return pid_; }

  // Its exit code, or minus the number of the signal it died of.
  int Wait();
  void Kill();

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_IN_CHILD_H_
