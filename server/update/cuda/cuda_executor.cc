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

namespace optshard {
namespace {

constexpr size_t kSmallestStaging = 64 << 10;
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
  const char* const formula = rule.formula();
  const FormulaKernels* const kernels =
      formula == nullptr ? nullptr : FormulaKernelRegistry::Find(formula);
  if (kernels == nullptr) {
    return absl::UnimplementedError(absl::StrFormat(
        "rule \"%s\" has no kernels for GPUs: keep its state on CPUs", rule.spec().name));
  }
  const auto tables = LaunchTable::For(tasks);
  if (!tables.ok()) return tables.status();
  const CurrentDevice current(device_);
  if (!current.status().ok()) return current.status();
  for (const LaunchTable& table : *tables) {
    const absl::Status status = Launch(*kernels, table, context.stream);
    if (!status.ok()) return status;
  }
  auto event = CudaEvent::Create();
  if (!event.ok()) return event.status();
  const absl::Status status = event->Record(static_cast<cudaStream_t>(context.stream));
  if (!status.ok()) return status;
  return std::unique_ptr<Ticket>(new CudaTicket(device_, *std::move(event)));
}

absl::Status CudaExecutor::Launch(const FormulaKernels& kernels, const LaunchTable& table,
                                  void* stream) {
  const absl::StatusOr<int> blocks = BlocksOf(kernels, table);
  if (!blocks.ok()) return blocks.status();
  const absl::StatusOr<Staging*> staging = NextStaging(table.bytes());
  if (!staging.ok()) return staging.status();
  Staging& at = **staging;
  table.CopyTo(at.host.data());
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const cudaError_t copied = cudaMemcpyAsync(at.device.data(), at.host.data(), table.bytes(),
                                             cudaMemcpyHostToDevice, cuda_stream);
  if (copied != cudaSuccess) return CudaStatus(copied, "copying the table of an update");
  const KernelGrid grid = {static_cast<int>(std::min<int64_t>(*blocks, table.chunks())), stream};
  const auto* const maps = static_cast<const CodeTable*>(tables_.data());
  const bool is_double = table.arithmetic() == DType::kFloat64;
  const int launched =
      is_double
          ? kernels.float64.launch(table.slots(), table.pass(),
                                   table.ArgumentsAt<double>(at.device.data(), maps, nullptr), grid)
          : kernels.float32.launch(table.slots(), table.pass(),
                                   table.ArgumentsAt<float>(at.device.data(), maps, nullptr), grid);
  if (launched != 0) {
    return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing an update");
  }
  return at.is_read.Record(cuda_stream);
}

absl::StatusOr<CudaExecutor::Staging*> CudaExecutor::NextStaging(size_t bytes) {
  Staging& staging = staging_[next_staging_++ % staging_.size()];
  if (staging.host.data() != nullptr) {
    const absl::Status status = staging.is_read.Wait(Clock::Monotonic().Now() + kLongestWait);
    if (!status.ok()) {
      return errors::WithContext(status,
                                 absl::StrCat("an earlier update on ", NameOfDevice(device_)));
    }
  } else {
    auto event = CudaEvent::Create();
    if (!event.ok()) return event.status();
    staging.is_read = *std::move(event);
  }
  if (staging.host.bytes() >= bytes) return &staging;
  const size_t more = std::max(kSmallestStaging, bytes + bytes / 2);
  auto host = CudaMemory::OnHost(more);
  if (!host.ok()) return host.status();
  auto device = CudaMemory::OnDevice(more);
  if (!device.ok()) return device.status();
  staging.host = *std::move(host);
  staging.device = *std::move(device);
  return &staging;
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
