// Prints what a program's health service says: health-probe PORT SERVICE.
// grpc_cli cannot ask: reflection does not describe gRPC's own health service.
#include <cstdio>
#include <cstdlib>

#include "tests/testing/health_probe.h"

int main(int argc, char** argv) {
  using optshard::testing::Health;
  if (argc != 3) {
    std::fprintf(stderr, "usage: health-probe PORT SERVICE\n");
    return 2;
  }
  switch (optshard::testing::ProbeHealth(std::atoi(argv[1]), argv[2])) {
    case Health::kServing:
      std::puts("SERVING");
      return 0;
    case Health::kNotServing:
      std::puts("NOT_SERVING");
      return 0;
    case Health::kUnknownService:
      std::puts("NOT_FOUND");
      return 0;
    case Health::kNoAnswer:
      std::puts("no answer");
      return 0;
  }
  return 1;
}
