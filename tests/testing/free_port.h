// A port of the loopback that nobody has.
#ifndef OPTSHARD_TESTS_TESTING_FREE_PORT_H_
#define OPTSHARD_TESTS_TESTING_FREE_PORT_H_

namespace optshard::testing {

// Others may take it before the caller does. Thread-safe.
int FreePort();

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FREE_PORT_H_
