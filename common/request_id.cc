#include "common/request_id.h"

#include <random>

#include "absl/strings/str_format.h"

namespace optshard {

std::string NewRequestId() {
  // Reads the kernel's random numbers at every call: nothing that a fork could repeat.
  std::random_device random("/dev/urandom");
  std::string id;
  for (int word = 0; word < 4; ++word) {
    absl::StrAppendFormat(&id, "%08x", static_cast<uint32_t>(random()));
  }
  return id;
}

uint64_t NewToken() {
  std::random_device random("/dev/urandom");
  uint64_t token = 0;
  while (token == 0) token = uint64_t{random()} << 32 | random();
  return token;
}

}  // namespace optshard
