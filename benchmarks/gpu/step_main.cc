// Steps of ShardedOptimizer with parameters on a GPU, of one rank: how long each takes, one behind
// the other, and how long the host until one is enqueued.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "benchmarks/gpu/measuring.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/sharded_optimizer_options.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/cuda/cuda_status.h"
#include "nlohmann/json.hpp"

namespace optshard {
namespace {

struct Flags {
  int64_t elements = 1000000000;
  int parts = 20;
  int rounds = 7;
  int steps = 5;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-bench-gpu-step",
       "Times Adam steps of one rank's ShardedOptimizer on the first GPU; prints a line "
       "of JSON for each way, at last with an eighth of the parameters and the state in "
       "memory of the host. Needs about 20 bytes of the GPU's memory for each parameter, "
       "and LibTorch for CUDA.",
       {"optshard-bench-gpu-step --elements=1000000000"}});
  line.Add("elements", &flags.elements, "parameters").AtLeast(1 << 20);
  line.Add("parts", &flags.parts, "tensors of equal size that they are").AtLeast(1);
  line.Add("rounds", &flags.rounds, "of which the median is taken").AtLeast(1);
  line.Add("steps", &flags.steps, "in each round").AtLeast(1);
  return line;
}

struct Way {
  std::string name;
  at::ScalarType type;
  bool master_weights;
  double bytes;  // moved for each parameter; with the state on the host: over its link
  const char* state_device = "";
};

void Measure(const Flags& flags, const Way& way) {
  const auto placed = at::TensorOptions(way.type).device(c10::kCUDA, 0);
  std::vector<at::Tensor> parameters;
  for (int part = 0; part < flags.parts; ++part) {
    parameters.push_back(at::full({flags.elements / flags.parts}, 0.02, placed));
    parameters.back().set_requires_grad(true);
  }
  ShardedOptimizerOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.master_weights = way.master_weights;
  options.state_device = way.state_device;
  ShardedOptimizer optimizer(parameters, RuleOptions("adam"), options);
  for (at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::full(parameter.sizes(), 1e-3, placed);
  }
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  optimizer.step();
  std::vector<double> device_ms, host_us;
  for (int round = 0; round < flags.rounds; ++round) {
    Check(cudaDeviceSynchronize());
    // Alone: a step begins by waiting for the one before it.
    const absl::Time started = Clock::Monotonic().Now();
    optimizer.step();
    host_us.push_back(absl::ToDoubleMicroseconds(Clock::Monotonic().Now() - started));
    Check(cudaDeviceSynchronize());
    Check(cudaEventRecord(begin));
    for (int step = 0; step < flags.steps; ++step) optimizer.step();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    device_ms.push_back(static_cast<double>(ms) / flags.steps);
  }
  optimizer.Close();
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  const double ms = Median(device_ms);
  const nlohmann::ordered_json line = {
      {"step", way.name},
      {"ms", ms},
      {"gb_a_second", way.bytes * static_cast<double>(flags.elements) / ms / 1e6},
      {"enqueued_in_us", Median(host_us)},
  };
  std::cout << line.dump() << std::endl;
}

int Main(int argc, char** argv) {
  Flags flags;
  CommandLine line = CommandLineOf(flags);
  if (const auto code = line.ParseOrEnd(argc, argv); code.has_value()) return *code;
  // LibTorch finds it loaded as where a program links it.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::cerr << "optshard-bench-gpu-step: no LibTorch for CUDA: " << dlerror() << "\n";
    return 1;
  }
  if (const absl::Status status = UseDevice(0); !status.ok()) {
    std::cerr << "optshard-bench-gpu-step: " << status.message() << "\n";
    return 1;
  }
  try {
    Measure(flags, {"adam float32", at::kFloat, false, 28});
    Measure(flags, {"adam bfloat16", at::kBFloat16, false, 22});
    Measure(flags, {"adam bfloat16, float32 master", at::kBFloat16, true, 28});
    flags.elements /= 8;
    Measure(flags, {"adam float32, state on the host", at::kFloat, false, 12, "cpu"});
    Measure(flags,
            {"adam bfloat16, state on the host, float32 master", at::kBFloat16, true, 4, "cpu"});
  } catch (const std::exception& error) {
    std::cerr << "optshard-bench-gpu-step: " << error.what() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) { return optshard::Main(argc, argv); }
