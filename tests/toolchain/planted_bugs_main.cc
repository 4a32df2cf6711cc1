// Holds one bug of each kind that the sanitizers are there to find; sanitizer_test runs it and
// expects its death.

#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace {

volatile int zero = 0;

void UseAfterFree() {
  auto value = std::make_unique<int>(1);
  int* volatile stale = value.get();  // volatile: the compiler itself would see the bug.
  value.reset();
  std::printf("%d\n", *stale);
}

void Overflow() {
  volatile int largest = INT_MAX;
  volatile int sum = largest + 1 + zero;
  std::printf("%d\n", sum);
}

void Race() {
  int shared = 0;
  std::thread other([&shared] { ++shared; });
  ++shared;
  other.join();
  std::printf("%d\n", shared);
}

// No bug: what Race would be if its author had known of mutexes.
void Locked() {
  absl::Mutex mutex;
  int shared = 0;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    ++shared;
  });
  {
    absl::MutexLock lock(&mutex);
    ++shared;
  }
  other.join();
  std::printf("%d\n", shared);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const bug = argc > 1 ? argv[1] : "";
  if (std::strcmp(bug, "use-after-free") == 0) {
    UseAfterFree();
  } else if (std::strcmp(bug, "overflow") == 0) {
    Overflow();
  } else if (std::strcmp(bug, "race") == 0) {
    Race();
  } else if (std::strcmp(bug, "none") == 0) {
    Locked();
  } else {
    std::fprintf(stderr, "usage: planted_bugs use-after-free|overflow|race|none\n");
    return 2;
  }
  return 0;
}
