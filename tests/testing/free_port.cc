#include "tests/testing/free_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace optshard::testing {

int FreePort() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(descriptor, generic, length), 0);
  EXPECT_EQ(getsockname(descriptor, generic, &length), 0);
  close(descriptor);
  return ntohs(address.sin_port);
}

}  // namespace optshard::testing
