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
#include "server/update/cuda/halves_kernels.h"
#include "server/update/cuda/matrices_kernels.h"
#include "server/update/cuda/squares.h"
#include "server/update/cuda/step_size.h"

namespace optshard {
namespace {

// At most so much memory, or as much as one parameter takes.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// Of kernels that are no formula's: several for each multiprocessor, so that loads overlap.
constexpr int kBlocksOfMultiprocessor = 8;
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
  auto workspace_is_free = CudaEvent::Create();
  if (!workspace_is_free.ok()) return workspace_is_free.status();
  return std::unique_ptr<Executor>(new CudaExecutor(device, multiprocessors, *std::move(tables),
                                                    *std::move(ring),
                                                    *std::move(workspace_is_free)));
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
  const std::unique_ptr<SequencedRule> sequenced = SequencedRule::Find(rule.spec().name);
  status = sequenced != nullptr ? StartSequenced(*sequenced, tasks, stream)
                                : StartElementWise(*KernelsOf(rule), tasks, stream);
  if (!status.ok()) return status;
  auto event = CudaEvent::Create();
  if (!event.ok()) return event.status();
  status = event->Record(stream);
  if (!status.ok()) return status;
  return std::unique_ptr<Ticket>(new CudaTicket(device_, *std::move(event)));
}

absl::Status CudaExecutor::CheckRuns(const UpdateRule& rule) const {
  if (KernelsOf(rule) != nullptr) return absl::OkStatus();
  if (const auto sequenced = SequencedRule::Find(rule.spec().name)) {
    if (!sequenced->MultipliesMatrices() || products_ != nullptr) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<CublasProducts>> products = CublasProducts::Create(device_);
    if (!products.ok()) {
      return errors::WithContext(
          products.status(),
          absl::StrFormat("rule \"%s\" on %s", rule.spec().name, NameOfDevice(device_)));
    }
    products_ = *std::move(products);
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "rule \"%s\" has no kernels for GPUs: keep its state on CPUs", rule.spec().name));
}

absl::Status CudaExecutor::StartElementWise(const FormulaKernels& kernels,
                                            absl::Span<const UpdateTask> tasks,
                                            cudaStream_t stream) {
  const auto tables = LaunchTable::For(tasks);
  if (!tables.ok()) return tables.status();
  std::vector<size_t> places;
  TableLayout layout;
  for (const LaunchTable& table : *tables) {
    const absl::StatusOr<int> blocks = BlocksOf(kernels, table);
    if (!blocks.ok()) return blocks.status();
    places.push_back(layout.Add(table.bytes()));
  }
  if (places.empty()) return absl::OkStatus();
  const auto fill = [&](void* host, void*) {
    for (size_t i = 0; i < places.size(); ++i) (*tables)[i].CopyTo(At(host, places[i]));
  };
  const auto place = on_their_way_.Copy(layout.bytes(), fill, stream, Soon());
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  absl::Status status;
  for (size_t i = 0; i < places.size() && status.ok(); ++i) {
    status = Enqueue(kernels, (*tables)[i], At((*place)->device.data(), places[i]), stream);
  }
  status.Update((*place)->is_read.Record(stream));
  return status;
}

class CudaExecutor::Enqueuer final : public SequenceRunner {
 public:
  Enqueuer(CudaExecutor& executor, cudaStream_t stream)
      : executor_(executor),
        stream_(stream),
        grid_{kBlocksOfMultiprocessor * executor.multiprocessors_, stream} {}

  absl::Status RunFormula(const char* formula, const LaunchTable& table, const void* at) override {
    return executor_.Enqueue(*FormulaKernelRegistry::Find(formula), table, at, stream_);
  }
  absl::Status RunSquares(const SquaresArguments& arguments, bool of_spans) override {
    const SquaresOf wanted = of_spans ? SquaresOf::kBlocksAndSpans : SquaresOf::kBlocks;
    return Enqueued(LaunchSquares(arguments, wanted, grid_), "the squares of an update");
  }
  absl::Status RunStepSizes(const StepSizeArguments& arguments) override {
    return Enqueued(LaunchStepSizes(arguments, stream_), "the step sizes of an update");
  }
  absl::Status RunMatrices(MatricesPhase phase, bool is_double,
                           const MatricesArguments& arguments) override {
    return Enqueued(LaunchMatrices(phase, is_double, arguments, grid_),
                    "the averages over rows and columns of an update");
  }
  absl::Status RunHalves(HalvesPhase phase, bool is_double,
                         const HalvesArguments& arguments) override {
    return Enqueued(LaunchHalves(phase, is_double, arguments, grid_),
                    "an update's conversion from or to bfloat16");
  }
  absl::Status RunProduct(const DeviceProduct& product) override {
    return executor_.products_->Enqueue(product, stream_);
  }

 private:
  static absl::Status Enqueued(int launched, const char* what) {
    return CudaStatus(static_cast<cudaError_t>(launched), absl::StrCat("enqueueing ", what));
  }

  CudaExecutor& executor_;
  const cudaStream_t stream_;
  const KernelGrid grid_;
};

absl::Status CudaExecutor::StartSequenced(const SequencedRule& rule,
                                          absl::Span<const UpdateTask> tasks, cudaStream_t stream) {
  const auto batches = rule.Batches(tasks, kWorkspaceBytes);
  if (batches.empty()) return absl::OkStatus();
  int64_t largest = 0;
  for (const auto& batch : batches) largest = std::max(largest, rule.WorkspaceBytes(batch));
  absl::Status status = MakeRoom(largest);
  if (!status.ok()) return status;

  // All is laid out before anything is enqueued: then nothing but the device can fail.
  const auto runs = [this](const char* formula, const LaunchTable& table) {
    const FormulaKernels* const kernels = FormulaKernelRegistry::Find(formula);
    if (kernels == nullptr) {
      return absl::InternalError(absl::StrFormat("there are no kernels of \"%s\"", formula));
    }
    return BlocksOf(*kernels, table).status();
  };
  std::vector<LaunchSequence> sequences;
  std::vector<size_t> places;
  TableLayout layout;
  for (const auto& batch : batches) {
    absl::StatusOr<LaunchSequence> sequence = rule.SequenceOf(batch, workspace_.data());
    if (!sequence.ok()) return sequence.status();
    status = sequence->ForEachFormula(runs);
    if (!status.ok()) return status;
    places.push_back(layout.Add(sequence->bytes()));
    sequences.push_back(*std::move(sequence));
  }
  status = PrepareProducts(sequences);
  if (!status.ok()) return status;
  const auto fill = [&](void* host, void* device) {
    for (size_t i = 0; i < places.size(); ++i) {
      sequences[i].CopyTo(At(host, places[i]), At(device, places[i]));
    }
  };
  const auto place = on_their_way_.Copy(layout.bytes(), fill, stream, Soon());
  if (!place.ok()) return errors::WithContext(place.status(), NameOfDevice(device_));
  // Another stream may have had the workspace before.
  status = workspace_is_free_.OrderOn(stream);
  Enqueuer enqueuer(*this, stream);
  for (size_t i = 0; i < places.size() && status.ok(); ++i) {
    status = sequences[i].Run(At((*place)->device.data(), places[i]), enqueuer);
  }
  status.Update((*place)->is_read.Record(stream));
  status.Update(workspace_is_free_.Record(stream));
  return status;
}

absl::Status CudaExecutor::Enqueue(const FormulaKernels& kernels, const LaunchTable& table,
                                   const void* at, cudaStream_t stream) {
  const absl::StatusOr<int> blocks = BlocksOf(kernels, table);
  if (!blocks.ok()) return blocks.status();
  const KernelGrid grid = {static_cast<int>(std::min<int64_t>(*blocks, table.chunks())), stream};
  const auto* const maps = static_cast<const CodeTable*>(tables_.data());
  const bool is_double = table.arithmetic() == DType::kFloat64;
  const int launched =
      is_double ? kernels.float64.launch(table.slots(), table.pass(),
                                         table.ArgumentsAt<double>(at, maps, nullptr), grid)
                : kernels.float32.launch(table.slots(), table.pass(),
                                         table.ArgumentsAt<float>(at, maps, nullptr), grid);
  return CudaStatus(static_cast<cudaError_t>(launched), "enqueueing an update");
}

absl::Status CudaExecutor::MakeRoom(int64_t workspace_bytes) {
  const auto needed = static_cast<size_t>(workspace_bytes);
  if (workspace_.data() != nullptr && workspace_.bytes() >= needed) return absl::OkStatus();
  const absl::Status ended = workspace_is_free_.Wait(Soon());
  if (!ended.ok()) return errors::WithContext(ended, NameOfDevice(device_));
  workspace_ = CudaMemory();
  auto memory = CudaMemory::OnDevice(needed);
  if (!memory.ok()) return errors::WithContext(memory.status(), "the workspace of an update");
  workspace_ = *std::move(memory);
  return absl::OkStatus();
}

absl::Status CudaExecutor::PrepareProducts(const std::vector<LaunchSequence>& sequences) {
  const auto prepare = [this](const DeviceProduct& product) { return products_->Prepare(product); };
  for (const LaunchSequence& sequence : sequences) {
    const absl::Status prepared = sequence.ForEachProduct(prepare);
    if (!prepared.ok()) return errors::WithContext(prepared, NameOfDevice(device_));
  }
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
