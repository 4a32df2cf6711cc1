#include "server/update/cuda/cuda_executor.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/current_device.h"
#include "common/errors.h"
#include "common/log.h"
#include "server/update/cuda/squares.h"
#include "server/update/cuda/step_size.h"

namespace optshard {
namespace {

// Of parameters whose directions are computed, measured and used together: they then come from the
// device's cache.
constexpr int64_t kDirectionBytes = int64_t{32} << 20;
// Several for each multiprocessor, so that loads overlap.
constexpr int kBlocksOfSquares = 8;
// For launches to have read their tables, or ended, where nobody has given a deadline.
constexpr absl::Duration kLongestWait = absl::Minutes(1);

std::string NameOfDevice(int device) { return absl::StrCat("cuda:", device); }

class CudaTicket final : public Ticket {
 public:
  CudaTicket(int device, CudaEvent event) : device_(device), event_(std::move(event)) {}
  ~CudaTicket() override {
    if (is_ordered_) return;
    const absl::Status ended = WaitHere(Clock::Monotonic().Now() + kLongestWait);
    if (!ended.ok()) {
      Log(LogLevel::kWarning, LogContext{}, "nobody waits any more: %s", ended.ToString());
    }
  }

  absl::Status Wait(absl::Time deadline) override { return WaitHere(deadline); }

  absl::Status OrderOn(const ExecutionContext& context) override {
    if (context.device != NameOfDevice(device_)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("an update on %s cannot be ordered on a stream of %s: wait for it",
                          NameOfDevice(device_), context.device));
    }
    absl::Status status = event_.OrderOn(static_cast<cudaStream_t>(context.stream));
    is_ordered_ = is_ordered_ || status.ok();
    return status;
  }

 private:
  absl::Status WaitHere(absl::Time deadline) {
    const absl::Status status = event_.Wait(deadline);
    is_ordered_ = is_ordered_ || status.ok();
    return errors::WithContext(status, absl::StrCat("an update on ", NameOfDevice(device_)));
  }

  const int device_;
  CudaEvent event_;
  bool is_ordered_ = false;  // nobody touches the arrays before the update has ended
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> CudaExecutor::Create(int device) {
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  int multiprocessors = 0;
  cudaError_t error =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return CudaStatus(error, "asking for a device's multiprocessors");
  constexpr size_t kTableBytes = kCodeTables * sizeof(CodeTable);
  auto tables = CudaMemory::OnDevice(kTableBytes);
  if (!tables.ok()) return tables.status();
  error = cudaMemcpy(tables->data(), CodeTables(), kTableBytes, cudaMemcpyHostToDevice);
  if (error != cudaSuccess) return CudaStatus(error, "copying the tables of 8-bit codes");
  return std::unique_ptr<Executor>(new CudaExecutor(device, multiprocessors, *std::move(tables)));
}

absl::StatusOr<std::unique_ptr<Ticket>> CudaExecutor::Start(const ExecutionContext& context,
                                                            const UpdateRule& rule,
                                                            absl::Span<const UpdateTask> tasks) {
  if (context.device != NameOfDevice(device_)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("an update was given a stream of %s, expected one of %s", context.device,
                        NameOfDevice(device_)));
  }
  const CurrentDevice current(device_);
  if (!current.status().ok()) return current.status();
  auto* const stream = static_cast<cudaStream_t>(context.stream);
  const NormScaledRule* const with_norms = NormScaledRules::Find(rule.spec().name);
  const FormulaKernels* const kernels =
      rule.formula() == nullptr ? nullptr : FormulaKernelRegistry::Find(rule.formula());
  absl::Status status;
  if (with_norms != nullptr) {
    status = StartWithNorms(*with_norms, tasks, stream);
  } else if (kernels != nullptr) {
    status = Start(*kernels, tasks, stream);
  } else {
    status = absl::UnimplementedError(absl::StrFormat(
        "rule \"%s\" has no kernels for GPUs: keep its state on CPUs", rule.spec().name));
  }
  if (!status.ok()) return status;
  auto event = CudaEvent::Create();
  if (!event.ok()) return event.status();
  status = event->Record(stream);
  if (!status.ok()) return status;
  return std::unique_ptr<Ticket>(new CudaTicket(device_, *std::move(event)));
}

absl::Status CudaExecutor::Start(const FormulaKernels& kernels, absl::Span<const UpdateTask> tasks,
                                 cudaStream_t stream) {
  const auto tables = LaunchTable::For(tasks);
  if (!tables.ok()) return tables.status();
  for (const LaunchTable& table : *tables) {
    const absl::Status status = Launch(kernels, table, stream);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::StartWithNorms(const NormScaledRule& rule,
                                          absl::Span<const UpdateTask> tasks, cudaStream_t stream) {
  while (!tasks.empty()) {
    size_t count = 1;
    int64_t bytes = NormScaledLaunches::DirectionBytes(tasks.first(1));
    for (; count < tasks.size(); ++count) {
      bytes += NormScaledLaunches::DirectionBytes(tasks.subspan(count, 1));
      if (bytes > kDirectionBytes) break;
    }
    const absl::Status status = StartBatch(rule, tasks.first(count), stream);
    if (!status.ok()) return status;
    tasks.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::StartBatch(const NormScaledRule& rule,
                                      absl::Span<const UpdateTask> batch, cudaStream_t stream) {
  const FormulaKernels* const direction = FormulaKernelRegistry::Find(rule.direction);
  const FormulaKernels* const step_kernels = FormulaKernelRegistry::Find(rule.step);
  if (direction == nullptr || step_kernels == nullptr) {
    return absl::InternalError(absl::StrFormat("rule \"%s\" lacks kernels of \"%s\" or \"%s\"",
                                               rule.rule, rule.direction, rule.step));
  }
  absl::Status status = MakeRoomForDirections(NormScaledLaunches::DirectionBytes(batch));
  if (!status.ok()) return status;
  // An earlier batch may have been put on another stream.
  status = directions_are_free_.OrderOn(stream);
  if (!status.ok()) return status;
  const auto launches = NormScaledLaunches::For(rule, batch, directions_.data());
  if (!launches.ok()) return launches.status();
  for (const LaunchTable& table : launches->directions()) {
    status = Launch(*direction, table, stream);
    if (!status.ok()) return status;
  }
  const SquaresTable& squares = launches->squares();
  const auto place = squares_on_their_way_.Copy(
      squares.bytes_to_copy(), squares.bytes(), [&](void* host, void*) { squares.CopyTo(host); },
      stream, Clock::Monotonic().Now() + kLongestWait);
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  const SquaresArguments sums = squares.ArgumentsAt((*place)->device.data());
  const int launched = LaunchSquares(sums, {kBlocksOfSquares * multiprocessors_, stream});
  if (launched != 0) {
    return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing the norms of an update");
  }
  for (const NormScaledLaunches::Step& step : launches->steps()) {
    status = StartStep(*step_kernels, step, sums.of_spans, stream);
    if (!status.ok()) return status;
  }
  status = (*place)->is_read.Record(stream);
  if (!status.ok()) return status;
  return directions_are_free_.Record(stream);
}

absl::Status CudaExecutor::StartStep(const FormulaKernels& kernels,
                                     const NormScaledLaunches::Step& step,
                                     const SumOfSquaresOnDevice* sums, cudaStream_t stream) {
  const auto place = tables_on_their_way_.Copy(
      step.bytes(), step.bytes(), [&](void* host, void* device) { step.CopyTo(host, device); },
      stream, Clock::Monotonic().Now() + kLongestWait);
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  const int launched = LaunchStepSizes(step.SizesAt((*place)->device.data(), sums), stream);
  if (launched != 0) {
    return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing the step sizes of an update");
  }
  return Enqueue(kernels, step.table(), **place, stream);
}

absl::Status CudaExecutor::Launch(const FormulaKernels& kernels, const LaunchTable& table,
                                  cudaStream_t stream) {
  const auto place = tables_on_their_way_.Copy(
      table.bytes(), table.bytes(), [&](void* host, void*) { table.CopyTo(host); }, stream,
      Clock::Monotonic().Now() + kLongestWait);
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  return Enqueue(kernels, table, **place, stream);
}

absl::Status CudaExecutor::Enqueue(const FormulaKernels& kernels, const LaunchTable& table,
                                   StagingRing::Place& place, cudaStream_t stream) {
  const absl::StatusOr<int> blocks = BlocksOf(kernels, table);
  if (!blocks.ok()) return blocks.status();
  const void* const at = place.device.data();
  const KernelGrid grid = {static_cast<int>(std::min<int64_t>(*blocks, table.chunks())), stream};
  const auto* const maps = static_cast<const CodeTable*>(tables_.data());
  const bool is_double = table.arithmetic() == DType::kFloat64;
  const int launched =
      is_double ? kernels.float64.launch(table.slots(), table.pass(),
                                         table.ArgumentsAt<double>(at, maps, nullptr), grid)
                : kernels.float32.launch(table.slots(), table.pass(),
                                         table.ArgumentsAt<float>(at, maps, nullptr), grid);
  if (launched != 0) {
    return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing an update");
  }
  return place.is_read.Record(stream);
}

absl::Status CudaExecutor::MakeRoomForDirections(size_t bytes) {
  if (directions_.bytes() >= bytes && directions_.data() != nullptr) return absl::OkStatus();
  if (directions_.data() == nullptr) {
    auto event = CudaEvent::Create();
    if (!event.ok()) return event.status();
    directions_are_free_ = *std::move(event);
  } else {
    const absl::Status ended = directions_are_free_.Wait(Clock::Monotonic().Now() + kLongestWait);
    if (!ended.ok()) return errors::WithContext(ended, NameOfDevice(device_));
  }
  auto memory = CudaMemory::OnDevice(std::max<size_t>(bytes, kDirectionBytes));
  if (!memory.ok()) return errors::WithContext(memory.status(), "directions of an update");
  directions_ = *std::move(memory);
  return absl::OkStatus();
}

absl::StatusOr<int> CudaExecutor::BlocksOf(const FormulaKernels& kernels,
                                           const LaunchTable& table) {
  const KernelKey key = {&kernels, table.slots(), table.arithmetic(), table.pass()};
  if (const auto known = blocks_.find(key); known != blocks_.end()) return known->second;
  const bool is_double = table.arithmetic() == DType::kFloat64;
  const int blocks = is_double
                         ? kernels.float64.blocks_per_multiprocessor(table.slots(), table.pass())
                         : kernels.float32.blocks_per_multiprocessor(table.slots(), table.pass());
  if (blocks == 0) {
    const cudaError_t error = cudaGetLastError();
    return CudaStatus(
        error == cudaSuccess ? cudaErrorNoKernelImageForDevice : error,
        absl::StrFormat("asking how \"%s\" runs on %s", kernels.formula, NameOfDevice(device_)));
  }
  return blocks_[key] = blocks * multiprocessors_;
}

}  // namespace optshard
