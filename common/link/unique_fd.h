// A file descriptor that is closed with its owner.
#ifndef OPTSHARD_COMMON_LINK_UNIQUE_FD_H_
#define OPTSHARD_COMMON_LINK_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace optshard {

// Move-only; thread-compatible.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }  // -1: none
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_UNIQUE_FD_H_
