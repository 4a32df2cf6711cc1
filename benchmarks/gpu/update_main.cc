// Updates on a GPU beside the device's own copies: what share of its memory's speed they reach.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmarks/gpu/measuring.h"
#include "common/block_code.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/cuda/cuda_memory.h"
#include "common/cuda/cuda_status.h"
#include "common/half.h"
#include "nlohmann/json.hpp"
#include "server/update/cuda/cuda_executor.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

struct Flags {
  int64_t elements = 1000000000;
  int rounds = 7;
  int launches = 5;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-bench-gpu-update",
       "Times updates on the first GPU beside its own copies; prints a line of JSON for "
       "each. Needs about 24 bytes of the GPU's memory for each parameter.",
       {"optshard-bench-gpu-update --elements=1000000000"}});
  line.Add("elements", &flags.elements, "parameters").AtLeast(1 << 20);
  line.Add("rounds", &flags.rounds, "of which the median is taken").AtLeast(1);
  line.Add("launches", &flags.launches, "updates in each round").AtLeast(1);
  return line;
}

// Device memory that repeats a piece of the host's.
class Filled {
 public:
  Filled(int64_t bytes, const std::vector<char>& piece) {
    auto memory = CudaMemory::OnDevice(bytes);
    Check(memory.status());
    memory_ = *std::move(memory);
    auto* const to = static_cast<char*>(memory_.data());
    int64_t done = std::min<int64_t>(bytes, static_cast<int64_t>(piece.size()));
    Check(cudaMemcpy(to, piece.data(), done, cudaMemcpyHostToDevice));
    while (done < bytes) {
      const int64_t more = std::min(done, bytes - done);
      Check(cudaMemcpy(to + done, to, more, cudaMemcpyDeviceToDevice));
      done += more;
    }
  }
  void* data() const { return memory_.data(); }

 private:
  CudaMemory memory_;
};

constexpr int64_t kPieceElements = 1 << 20;

// Values as parameters and averages of gradients have them, in any type.
std::vector<char> PieceOf(DType dtype, bool is_square) {
  std::mt19937 random(7);
  std::vector<char> piece(kPieceElements * SizeOf(dtype));
  for (int64_t i = 0; i < kPieceElements; ++i) {
    const float unit = (static_cast<float>(random() >> 8) + 0.5f) * 0x1p-24f;
    const float value = is_square ? 1e-4f * unit * unit : 0.02f * (unit - 0.5f);
    if (dtype == DType::kFloat32) {
      reinterpret_cast<float*>(piece.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(piece.data())[i] =
          dtype == DType::kBFloat16 ? ToBFloat16(value) : ToFloat16(value);
    }
  }
  return piece;
}

// A parameter's arrays and what an update of them moves.
class Arrays {
 public:
  explicit Arrays(int64_t elements) : elements_(elements) {}

  Buffer Plain(DType dtype, bool is_square = false) {
    memory_.push_back(std::make_unique<Filled>(elements_ * static_cast<int64_t>(SizeOf(dtype)),
                                               PieceOf(dtype, is_square)));
    return Buffer(memory_.back()->data(), dtype);
  }
  CodedArray Coded(BlockCode code) {
    std::mt19937 random(11);
    std::vector<char> codes(kPieceElements);
    for (char& one : codes) one = static_cast<char>(random());
    memory_.push_back(std::make_unique<Filled>(CodeBytes(code, elements_), codes));
    void* const values = memory_.back()->data();
    const bool is_dynamic = BlockElements(code) == kCodeGrid;
    memory_.push_back(std::make_unique<Filled>(
        ScaleBytes(code, elements_),
        PieceOf(is_dynamic ? DType::kFloat32 : DType::kFloat16, /*is_square=*/true)));
    return {code, static_cast<uint8_t*>(values), memory_.back()->data()};
  }

 private:
  const int64_t elements_;
  std::vector<std::unique_ptr<Filled>> memory_;
};

struct Contestant {
  std::string name;
  double bytes = 0;  // moved by one run
  std::function<void()> run;
  // What the run keeps of the device's memory.
  std::shared_ptr<void> keeps;
};

// `parts`: of as many parameters of equal size.
Contestant UpdateOf(const std::string& name, Executor* executor, const std::string& rule_name,
                    int64_t elements, int64_t parts, double bytes_an_element,
                    const std::function<SpanUpdate(Arrays&)>& make) {
  const auto rule = RuleRegistry::Find(rule_name);
  Check(rule.status());
  const auto group = (*rule)->Validate({});
  Check(group.status());
  auto arrays = std::make_shared<Arrays>(elements);
  SpanUpdate whole = make(*arrays);
  whole.elements = elements;
  struct Kept {
    std::shared_ptr<Arrays> arrays;
    Coefficients coefficients;
    std::vector<UpdateTask> tasks;
  };
  auto kept = std::make_shared<Kept>();
  kept->arrays = arrays;
  kept->coefficients = (*rule)->Prepare(*group, 10);
  const int64_t each = elements / parts / kCodeGrid * kCodeGrid;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * each;
    const int64_t last = part + 1 == parts ? elements : first + each;
    UpdateTask task;
    task.coefficients = &kept->coefficients;
    task.span = whole.Part(first, last - first);
    kept->tasks.push_back(task);
  }
  const UpdateRule* const found = *rule;
  const auto run = [executor, found, tasks = &kept->tasks] {
    auto ticket = executor->Start({"cuda:0", nullptr}, *found, *tasks);
    Check(ticket.status());
    Check((*ticket)->OrderOn({"cuda:0", nullptr}));
  };
  return {name, bytes_an_element * static_cast<double>(elements), run, kept};
}

Contestant CopyOf(int64_t bytes) {
  struct Kept {
    Filled from, to;
  };
  const std::vector<char> piece = PieceOf(DType::kFloat32, false);
  auto kept = std::make_shared<Kept>(Kept{{bytes, piece}, {bytes, piece}});
  const auto run = [kept = kept.get(), bytes] {
    Check(cudaMemcpyAsync(kept->to.data(), kept->from.data(), bytes, cudaMemcpyDeviceToDevice,
                          nullptr));
  };
  return {"copy", 2.0 * static_cast<double>(bytes), run, kept};
}

struct Timing {
  double device_ms = 0;  // of one run
  double host_us = 0;    // until one run is enqueued
};

Timing TimeOf(const Contestant& contestant, int launches) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  Check(cudaDeviceSynchronize());
  const absl::Time started = Clock::Monotonic().Now();
  contestant.run();
  const absl::Duration enqueued = Clock::Monotonic().Now() - started;
  Check(cudaDeviceSynchronize());
  Check(cudaEventRecord(begin));
  for (int k = 0; k < launches; ++k) contestant.run();
  Check(cudaEventRecord(end));
  Check(cudaEventSynchronize(end));
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return {static_cast<double>(ms) / launches, absl::ToDoubleMicroseconds(enqueued)};
}

// Beside the copy, round by round: a device's clocks change.
void Measure(const Flags& flags, const Contestant& copy, const Contestant& contestant) {
  std::vector<double> milliseconds, shares, host;
  for (int round = 0; round < flags.rounds; ++round) {
    const Timing of_copy = TimeOf(copy, flags.launches);
    const Timing timing = TimeOf(contestant, flags.launches);
    milliseconds.push_back(timing.device_ms);
    host.push_back(timing.host_us);
    shares.push_back(contestant.bytes / timing.device_ms / (copy.bytes / of_copy.device_ms));
  }
  const double ms = Median(milliseconds);
  nlohmann::ordered_json line = {
      {"update", contestant.name},
      {"ms", ms},
      {"gb_a_second", contestant.bytes / ms / 1e6},
      {"share_of_copy", Median(shares)},
      {"enqueued_in_us", Median(host)},
  };
  std::cout << line.dump() << std::endl;
}

void MeasureAll(const Flags& flags) {
  auto executor = CudaExecutor::Create(0);
  Check(executor.status());
  Executor* const on_gpu = executor->get();
  const int64_t n = flags.elements;
  const Contestant copy = CopyOf(n * 4);
  const auto f32 = [](Arrays& arrays) {
    SpanUpdate span;
    span.parameter = arrays.Plain(DType::kFloat32);
    span.gradient = arrays.Plain(DType::kFloat32);
    return span;
  };
  const auto with_slots = [&f32](Arrays& arrays) {
    SpanUpdate span = f32(arrays);
    span.slots = {arrays.Plain(DType::kFloat32), arrays.Plain(DType::kFloat32, true)};
    return span;
  };
  Measure(flags, copy, UpdateOf("adam float32", on_gpu, "adam", n, 1, 28, with_slots));
  Measure(flags, copy,
          UpdateOf("adam float32, 1000 parameters", on_gpu, "adam", n, 1000, 28, with_slots));
  // As Adam's: the directions, and what is read again for the norms and the steps, is not counted.
  Measure(flags, copy,
          UpdateOf("lamb float32, 1000 parameters", on_gpu, "lamb", n, 1000, 28, with_slots));
  Measure(flags, copy, UpdateOf("lamb float32", on_gpu, "lamb", n, 1, 28, with_slots));
  Measure(flags, copy, UpdateOf("adamw float32", on_gpu, "adamw", n, 1, 28, with_slots));
  Measure(flags, copy, UpdateOf("sgd float32", on_gpu, "sgd", n, 1, 12, f32));
  Measure(flags, copy, UpdateOf("lion float32", on_gpu, "lion", n, 1, 20, [&f32](Arrays& arrays) {
            SpanUpdate span = f32(arrays);
            span.slots[0] = arrays.Plain(DType::kFloat32);
            return span;
          }));
  Measure(
      flags, copy,
      UpdateOf("adam bfloat16, float32 master and slots", on_gpu, "adam", n, 1, 28,
               [](Arrays& arrays) {
                 SpanUpdate span;
                 span.parameter = arrays.Plain(DType::kBFloat16);
                 span.gradient = arrays.Plain(DType::kBFloat16);
                 span.master = arrays.Plain(DType::kFloat32);
                 span.slots = {arrays.Plain(DType::kFloat32), arrays.Plain(DType::kFloat32, true)};
                 return span;
               }));
  Measure(flags, copy,
          UpdateOf("adam bfloat16, bfloat16 slots", on_gpu, "adam", n, 1, 14, [](Arrays& arrays) {
            SpanUpdate span;
            span.parameter = arrays.Plain(DType::kBFloat16);
            span.gradient = arrays.Plain(DType::kBFloat16);
            span.slots = {arrays.Plain(DType::kBFloat16), arrays.Plain(DType::kBFloat16, true)};
            return span;
          }));
  Measure(flags, copy,
          UpdateOf("adam float32, dynamic 8-bit slots", on_gpu, "adam", n, 1,
                   12 + 4 + 4 * 4.0 / 256, [&f32](Arrays& arrays) {
                     SpanUpdate span = f32(arrays);
                     span.slots = {arrays.Coded(BlockCode::kDynamicSigned),
                                   arrays.Coded(BlockCode::kDynamicUnsigned)};
                     return span;
                   }));
  Measure(flags, copy,
          UpdateOf("adam float32, companded 8-bit slots", on_gpu, "adam", n, 1,
                   12 + 4 + 4 * 2.0 / 32, [&f32](Arrays& arrays) {
                     SpanUpdate span = f32(arrays);
                     span.slots = {arrays.Coded(BlockCode::kCompandedAverage),
                                   arrays.Coded(BlockCode::kCompandedSquare)};
                     return span;
                   }));
  Measure(flags, copy,
          UpdateOf("adam bfloat16, corrections, companded 8-bit slots", on_gpu, "adam", n, 1,
                   4 + 2 + 2 + 4 + 4 * 2.0 / 32, [](Arrays& arrays) {
                     SpanUpdate span;
                     span.parameter = arrays.Plain(DType::kBFloat16);
                     span.gradient = arrays.Plain(DType::kBFloat16);
                     span.slots = {arrays.Coded(BlockCode::kCompandedAverage),
                                   arrays.Coded(BlockCode::kCompandedSquare)};
                     span.correction = reinterpret_cast<int8_t*>(
                         arrays.Coded(BlockCode::kCompandedAverage).codes);
                     return span;
                   }));
}

int Main(int argc, char** argv) {
  Flags flags;
  CommandLine line = CommandLineOf(flags);
  if (const auto code = line.ParseOrEnd(argc, argv); code.has_value()) return *code;
  if (const absl::Status status = UseDevice(0); !status.ok()) {
    std::cerr << "optshard-bench-gpu-update: " << status.message() << "\n";
    return 1;
  }
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  std::cout << nlohmann::ordered_json({{"device", properties.name},
                                       {"multiprocessors", properties.multiProcessorCount},
                                       {"elements", flags.elements}})
                   .dump()
            << std::endl;
  MeasureAll(flags);
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) { return optshard::Main(argc, argv); }
