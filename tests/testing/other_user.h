// Another user of this host, for tests of who is kept out. They need root, and Bazel's tag
// "no-sandbox": its sandbox knows one user.
#ifndef OPTSHARD_TESTS_TESTING_OTHER_USER_H_
#define OPTSHARD_TESTS_TESTING_OTHER_USER_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/link/local_socket.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {

constexpr uid_t kOtherUser = 65534;

// Whether a child of this process could become it. Where not, a test has to be skipped.
bool KnowsOtherUser();

// In a forked child: from now on it runs as kOtherUser.
bool BecomeOtherUser();

// Connects at once and looks at nothing, as a program that is not ours does. Null where it fails.
std::unique_ptr<LocalSocket> ConnectUnchecked(const LocalAddress& address);

// A child of the other user that listens at an abstract name before anybody of this user does.
// Bound to a thread; there should be no others when it is made.
class ForeignListener {
 public:
  // The name is free; on return it is taken.
  explicit ForeignListener(const LocalAddress& address);

  // Waits until somebody has connected and hung up. "" where nothing was sent to it, otherwise
  // what.
  std::string WhatCame();

 private:
  std::unique_ptr<Child> child_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_OTHER_USER_H_
