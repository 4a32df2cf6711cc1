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

// Null: it has none.
const FormulaKernels* KernelsOf(const UpdateRule& rule) {
  return rule.formula() == nullptr ? nullptr : FormulaKernelRegistry::Find(rule.formula());
}

std::string NameOfDevice(int device) { return absl::StrCat("cuda:", device); }

class CudaTicket final : public Ticket {
 public:
  CudaTicket(int device, CudaEvent event) : device_(device), event_(std::move(event)) {}
  ~CudaTicket() override {
    if (is_ordered_) return;
    const absl::Status ended = WaitHere(Soon());
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
  auto ring = StagingRing::Create();
  if (!ring.ok()) return ring.status();
  auto directions_are_free = CudaEvent::Create();
  if (!directions_are_free.ok()) return directions_are_free.status();
  return std::unique_ptr<Executor>(new CudaExecutor(device, multiprocessors, *std::move(tables),
                                                    *std::move(ring),
                                                    *std::move(directions_are_free)));
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
  absl::Status status = CheckRuns(rule);
  if (!status.ok()) return status;
  const NormScaledRule* const with_norms = NormScaledRules::Find(rule.spec().name);
  status = with_norms != nullptr ? StartWithNorms(*with_norms, tasks, stream)
                                 : Start(*KernelsOf(rule), tasks, stream);
  if (!status.ok()) return status;
  auto event = CudaEvent::Create();
  if (!event.ok()) return event.status();
  status = event->Record(stream);
  if (!status.ok()) return status;
  return std::unique_ptr<Ticket>(new CudaTicket(device_, *std::move(event)));
}

absl::Status CudaExecutor::CheckRuns(const UpdateRule& rule) const {
  if (NormScaledRules::Find(rule.spec().name) != nullptr || KernelsOf(rule) != nullptr) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "rule \"%s\" has no kernels for GPUs: keep its state on CPUs", rule.spec().name));
}

absl::Status CudaExecutor::Start(const FormulaKernels& kernels, absl::Span<const UpdateTask> tasks,
                                 cudaStream_t stream) {
  const auto tables = LaunchTable::For(tasks);
  if (!tables.ok()) return tables.status();
  std::vector<Launch> launches;
  TableLayout layout;
  for (const LaunchTable& table : *tables) {
    const absl::StatusOr<Launch> launch = LaunchOf(kernels, table, layout.Add(table.bytes()));
    if (!launch.ok()) return launch.status();
    launches.push_back(*launch);
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
  const auto parts = NormScaledLaunches::Batches(tasks, kDirectionBytes);
  if (parts.empty()) return absl::OkStatus();
  int64_t largest = 0;
  for (const auto& part : parts) {
    largest = std::max(largest, NormScaledLaunches::DirectionBytes(part));
  }
  absl::Status status = MakeRoomForDirections(largest);
  if (!status.ok()) return status;

  // All is laid out before anything is enqueued: then nothing but the device can fail.
  std::vector<Batch> batches;
  TableLayout layout;
  TableLayout sums;  // behind all tables
  for (const auto& part : parts) {
    absl::StatusOr<Batch> batch = LayOut(rule, part, layout, sums);
    if (!batch.ok()) return batch.status();
    batches.push_back(*std::move(batch));
  }
  const auto fill = [&](void* host, void* device) {
    for (const Batch& batch : batches) CopyTables(batch, host, device);
  };
  const auto place =
      on_their_way_.Copy(layout.bytes(), layout.bytes() + sums.bytes(), fill, stream, Soon());
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  void* const at = (*place)->device.data();
  // Another stream may have had the directions before.
  status = directions_are_free_.OrderOn(stream);
  for (const Batch& batch : batches) {
    if (status.ok()) status = EnqueueBatch(batch, at, At(at, layout.bytes()), stream);
  }
  status.Update((*place)->is_read.Record(stream));
  status.Update(directions_are_free_.Record(stream));
  return status;
}

absl::StatusOr<CudaExecutor::Batch> CudaExecutor::LayOut(const NormScaledRule& rule,
                                                         absl::Span<const UpdateTask> tasks,
                                                         TableLayout& layout, TableLayout& sums) {
  const FormulaKernels* const direction = FormulaKernelRegistry::Find(rule.direction);
  const FormulaKernels* const step = FormulaKernelRegistry::Find(rule.step);
  if (direction == nullptr || step == nullptr) {
    return absl::InternalError(absl::StrFormat("rule \"%s\" lacks kernels of \"%s\" or \"%s\"",
                                               rule.rule, rule.direction, rule.step));
  }
  auto launches = NormScaledLaunches::For(rule, tasks, directions_.data());
  if (!launches.ok()) return launches.status();
  Batch batch(*std::move(launches));
  for (const LaunchTable& table : batch.launches.directions()) {
    const absl::StatusOr<Launch> launch = LaunchOf(*direction, table, layout.Add(table.bytes()));
    if (!launch.ok()) return launch.status();
    batch.directions.push_back(*launch);
  }
  const SquaresTable& squares = batch.launches.squares();
  batch.squares_at = layout.Add(squares.bytes());
  batch.sums_at = sums.Add(squares.bytes_of_sums());
  for (const NormScaledLaunches::Step& each : batch.launches.steps()) {
    const absl::StatusOr<Launch> launch = LaunchOf(*step, each.table(), layout.Add(each.bytes()));
    if (!launch.ok()) return launch.status();
    batch.steps.push_back(*launch);
  }
  return batch;
}

void CudaExecutor::CopyTables(const Batch& batch, void* host, void* device) {
  for (const Launch& launch : batch.directions) launch.table->CopyTo(At(host, launch.at));
  batch.launches.squares().CopyTo(At(host, batch.squares_at));
  for (size_t k = 0; k < batch.steps.size(); ++k) {
    const size_t at = batch.steps[k].at;
    batch.launches.steps()[k].CopyTo(At(host, at), At(device, at));
  }
}

absl::Status CudaExecutor::EnqueueBatch(const Batch& batch, void* place, void* sums,
                                        cudaStream_t stream) {
  absl::Status status;
  for (const Launch& launch : batch.directions) {
    status = Enqueue(launch, place, stream);
    if (!status.ok()) return status;
  }
  const SquaresArguments squares =
      batch.launches.squares().ArgumentsAt(At(place, batch.squares_at), At(sums, batch.sums_at));
  const int launched = LaunchSquares(squares, {kBlocksOfSquares * multiprocessors_, stream});
  status = CudaStatus(static_cast<cudaError_t>(launched), "enqueueing the norms of an update");
  for (size_t k = 0; k < batch.steps.size() && status.ok(); ++k) {
    const Launch& launch = batch.steps[k];
    const StepSizeArguments sizes =
        batch.launches.steps()[k].SizesAt(At(place, launch.at), squares.of_spans);
    status = CudaStatus(static_cast<cudaError_t>(LaunchStepSizes(sizes, stream)),
                        "enqueueing the step sizes of an update");
    if (status.ok()) status = Enqueue(launch, place, stream);
  }
  return status;
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
  const absl::Status ended = directions_are_free_.Wait(Soon());
  if (!ended.ok()) return errors::WithContext(ended, NameOfDevice(device_));
  directions_ = CudaMemory();
  auto memory = CudaMemory::OnDevice(needed);
  if (!memory.ok()) return errors::WithContext(memory.status(), "directions of an update");
  directions_ = *std::move(memory);
  return absl::OkStatus();
}

absl::StatusOr<CudaExecutor::Launch> CudaExecutor::LaunchOf(const FormulaKernels& kernels,
                                                            const LaunchTable& table, size_t at) {
  const absl::StatusOr<int> blocks = BlocksOf(kernels, table);
  if (!blocks.ok()) return blocks.status();
  return Launch{&kernels, &table, *blocks, at};
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
