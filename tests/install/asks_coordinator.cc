// A program that is no trainer: it asks a coordinator for an optimizer, without LibTorch.
#include <cstdio>

#include "client/control/optimizer_client_rpc.h"

int main(int, char** arguments) {
  optshard::OptimizerClient::Options options;
  options.coordinator = arguments[1];
  const auto client = optshard::OptimizerClient::Connect(options);
  if (client.ok()) {
    std::printf("%d slots\n", static_cast<int>((*client)->slots().size()));
    return 0;
  }
  std::printf("%s\n", client.status().ToString().c_str());
  return client.status().code() == absl::StatusCode::kNotFound ? 2 : 1;
}
