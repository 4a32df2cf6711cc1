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

// At most so much memory for directions, or as much as one parameter's take.
constexpr int64_t kDirectionBytes = int64_t{32} << 20;
// Several for each multiprocessor, so that loads overlap.
constexpr int kBlocksOfSquares = 8;
// For launches to have read their tables, or ended, where nobody has given a deadline.
constexpr absl::Duration kLongestWait = absl::Minutes(1);

absl::Time Soon() { return Clock::Monotonic().Now() + kLongestWait; }

void* At(void* memory, size_t offset) { return static_cast<char*>(memory) + offset; }

// Tables one behind the other, for one copy.
class Layout {
 public:
  // Where so many bytes begin.
  size_t Add(size_t bytes) {
    const size_t at = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = 16;

  size_t bytes_ = 0;
};

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
  std::vector<Launch> launches;
  Layout layout;
  for (const LaunchTable& table : *tables) {
    const absl::StatusOr<int> blocks = BlocksOf(kernels, table);
    if (!blocks.ok()) return blocks.status();
    launches.push_back({&kernels, &table, *blocks, layout.Add(table.bytes())});
  }
  if (launches.empty()) return absl::OkStatus();
  const auto fill = [&](void* host, void*) {
    for (const Launch& launch : launches) launch.table->CopyTo(At(host, launch.at));
  };
  const auto place = on_their_way_.Copy(layout.bytes(), layout.bytes(), fill, stream, Soon());
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  absl::Status status;
  for (const Launch& launch : launches) {
    if (status.ok()) status = Enqueue(launch, (*place)->device.data(), stream);
  }
  status.Update((*place)->is_read.Record(stream));
  return status;
}

absl::Status CudaExecutor::StartWithNorms(const NormScaledRule& rule,
                                          absl::Span<const UpdateTask> tasks, cudaStream_t stream) {
  const FormulaKernels* const direction = FormulaKernelRegistry::Find(rule.direction);
  const FormulaKernels* const step = FormulaKernelRegistry::Find(rule.step);
  if (direction == nullptr || step == nullptr) {
    return absl::InternalError(absl::StrFormat("rule \"%s\" lacks kernels of \"%s\" or \"%s\"",
                                               rule.rule, rule.direction, rule.step));
  }
  const auto batches = NormScaledLaunches::Batches(tasks, kDirectionBytes);
  if (batches.empty()) return absl::OkStatus();
  int64_t largest = 0;
  for (const auto& batch : batches) {
    largest = std::max(largest, NormScaledLaunches::DirectionBytes(batch));
  }
  absl::Status status = MakeRoomForDirections(largest);
  if (!status.ok()) return status;

  // All is laid out before anything is enqueued: then nothing but the device can fail.
  std::vector<Batch> all;
  Layout layout;
  size_t bytes_of_sums = 0;
  for (const auto& tasks_of_batch : batches) {
    auto launches = NormScaledLaunches::For(rule, tasks_of_batch, directions_.data());
    if (!launches.ok()) return launches.status();
    Batch batch(*std::move(launches));
    for (const LaunchTable& table : batch.launches.directions()) {
      const absl::StatusOr<int> blocks = BlocksOf(*direction, table);
      if (!blocks.ok()) return blocks.status();
      batch.directions.push_back({direction, &table, *blocks, layout.Add(table.bytes())});
    }
    batch.squares_at = layout.Add(batch.launches.squares().bytes());
    batch.sums_at = bytes_of_sums;
    bytes_of_sums += batch.launches.squares().bytes_of_sums();
    for (const NormScaledLaunches::Step& each : batch.launches.steps()) {
      const absl::StatusOr<int> blocks = BlocksOf(*step, each.table());
      if (!blocks.ok()) return blocks.status();
      batch.steps.push_back({step, &each.table(), *blocks, layout.Add(each.bytes())});
    }
    all.push_back(std::move(batch));
  }
  const auto fill = [&](void* host, void* device) {
    for (const Batch& batch : all) {
      for (const Launch& launch : batch.directions) launch.table->CopyTo(At(host, launch.at));
      batch.launches.squares().CopyTo(At(host, batch.squares_at));
      for (size_t k = 0; k < batch.steps.size(); ++k) {
        const size_t at = batch.steps[k].at;
        batch.launches.steps()[k].CopyTo(At(host, at), At(device, at));
      }
    }
  };
  const auto place =
      on_their_way_.Copy(layout.bytes(), layout.bytes() + bytes_of_sums, fill, stream, Soon());
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  void* const at = (*place)->device.data();
  // Another stream may have had the directions before.
  status = directions_are_free_.OrderOn(stream);
  for (const Batch& batch : all) {
    if (status.ok())
      status = EnqueueBatch(batch, at, At(at, layout.bytes() + batch.sums_at), stream);
  }
  status.Update((*place)->is_read.Record(stream));
  status.Update(directions_are_free_.Record(stream));
  return status;
}

absl::Status CudaExecutor::EnqueueBatch(const Batch& batch, void* at, void* sums_at,
                                        cudaStream_t stream) {
  for (const Launch& launch : batch.directions) {
    const absl::Status status = Enqueue(launch, at, stream);
    if (!status.ok()) return status;
  }
  const SquaresArguments sums =
      batch.launches.squares().ArgumentsAt(At(at, batch.squares_at), sums_at);
  int launched = LaunchSquares(sums, {kBlocksOfSquares * multiprocessors_, stream});
  for (size_t k = 0; k < batch.steps.size() && launched == 0; ++k) {
    const Launch& launch = batch.steps[k];
    launched = LaunchStepSizes(batch.launches.steps()[k].SizesAt(At(at, launch.at), sums.of_spans),
                               stream);
    if (launched != 0) break;
    const absl::Status status = Enqueue(launch, at, stream);
    if (!status.ok()) return status;
  }
  return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing the norms of an update");
}

absl::Status CudaExecutor::Enqueue(const Launch& launch, void* place, cudaStream_t stream) {
  const LaunchTable& table = *launch.table;
  const void* const at = At(place, launch.at);
  const KernelGrid grid = {static_cast<int>(std::min<int64_t>(launch.blocks, table.chunks())),
                           stream};
  const auto* const maps = static_cast<const CodeTable*>(tables_.data());
  const FormulaKernels& kernels = *launch.kernels;
  const bool is_double = table.arithmetic() == DType::kFloat64;
  const int launched =
      is_double ? kernels.float64.launch(table.slots(), table.pass(),
                                         table.ArgumentsAt<double>(at, maps, nullptr), grid)
                : kernels.float32.launch(table.slots(), table.pass(),
                                         table.ArgumentsAt<float>(at, maps, nullptr), grid);
  return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing an update");
}

absl::Status CudaExecutor::MakeRoomForDirections(int64_t bytes) {
  const auto needed = static_cast<size_t>(bytes);
  if (directions_.data() != nullptr && directions_.bytes() >= needed) return absl::OkStatus();
  if (!has_directions_event_) {
    auto event = CudaEvent::Create();
    if (!event.ok()) return event.status();
    directions_are_free_ = *std::move(event);
    has_directions_event_ = true;
  }
  const absl::Status ended = directions_are_free_.Wait(Soon());
  if (!ended.ok()) return errors::WithContext(ended, NameOfDevice(device_));
  directions_ = CudaMemory();
  auto memory = CudaMemory::OnDevice(needed);
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
