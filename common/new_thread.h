// Threads that a process can do without.
#ifndef OPTSHARD_COMMON_NEW_THREAD_H_
#define OPTSHARD_COMMON_NEW_THREAD_H_

#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace optshard {

// Runs `run` in a thread of its own, or throws std::system_error, as std::thread does. Tests give
// one that throws.
using ThreadStarter = std::function<std::thread(std::function<void()> run)>;

inline std::thread StartSystemThread(std::function<void()> run) {
  return std::thread(std::move(run));
}

// RESOURCE_EXHAUSTED where the system gives the process no further thread: its limit, or memory.
inline absl::StatusOr<std::thread> StartThread(const ThreadStarter& starter,
                                               std::function<void()> run) {
  try {
    return starter(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this process cannot start another thread (", error.what(),
                     "); raise its limit of threads, or try again later"));
  }
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_NEW_THREAD_H_
