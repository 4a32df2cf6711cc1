#include "server/update/offload_executor.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "common/block_code.h"
#include "common/device_wait.h"
#include "common/errors.h"
#include "common/memory_layout.h"

namespace optshard {
namespace {

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

// Cuts tasks into what windows hold.
class OffloadExecutor::Pieces {
 public:
  Pieces(const UpdateRule& rule, absl::Span<const UpdateTask> tasks)
      : element_wise_(rule.spec().element_wise), tasks_(tasks) {}

  bool AtEnd() const { return next_ == tasks_.size(); }

  // The next piece, of arrays on the device, if the window has room for it.
  absl::optional<UpdateTask> Take(const Window& window) {
    UpdateTask piece = tasks_[next_];
    const int64_t left = piece.span.elements - taken_;
    const int64_t room = std::min(window.gradients.Room(piece.span.gradient.dtype()),
                                  window.parameters.Room(piece.span.parameter.dtype()));
    if (left <= room) {
      if (taken_ > 0) piece.span = piece.span.Part(taken_, left);
      ++next_;
      taken_ = 0;
      return piece;
    }
    const int64_t cut = room / kCodeGrid * kCodeGrid;
    if (!element_wise_ || cut == 0) return absl::nullopt;
    piece.span = piece.span.Part(taken_, cut);
    taken_ += cut;
    return piece;
  }

 private:
  const bool element_wise_;
  const absl::Span<const UpdateTask> tasks_;
  size_t next_ = 0;
  int64_t taken_ = 0;  // elements of that one
};

class OffloadExecutor::OffloadTicket final : public Ticket {
 public:
  OffloadTicket(OffloadExecutor* executor, const ExecutionContext& context, const UpdateRule& rule,
                absl::Span<const UpdateTask> tasks)
      : executor_(*executor), context_(context), rule_(rule), tasks_(tasks) {}

  absl::Status Wait(absl::Time deadline) override {
    return executor_.Run(context_, rule_, tasks_, deadline);
  }
  absl::Status OrderOn(const ExecutionContext&) override {
    return absl::FailedPreconditionError("updates on the host are waited for");
  }

 private:
  OffloadExecutor& executor_;
  const ExecutionContext context_;
  const UpdateRule& rule_;
  const absl::Span<const UpdateTask> tasks_;
};

void OffloadExecutor::Arrays::Clear() {
  used_ = 0;
  copies_.clear();
}

int64_t OffloadExecutor::Arrays::NextAligned() const { return Aligned(used_); }

int64_t OffloadExecutor::Arrays::Room(DType dtype) const {
  return std::max<int64_t>(capacity_ - NextAligned(), 0) / static_cast<int64_t>(SizeOf(dtype));
}

Buffer OffloadExecutor::Arrays::Take(Buffer on_device, int64_t elements) {
  const auto bytes = elements * static_cast<int64_t>(SizeOf(on_device.dtype()));
  auto* const from = static_cast<char*>(on_device.data());
  used_ = NextAligned();
  char* const to = static_cast<char*>(memory_.get()) + used_;
  if (bytes > 0) copies_.push_back({to, from, static_cast<size_t>(bytes)});
  used_ += bytes;
  return Buffer(to, on_device.dtype());
}

absl::StatusOr<std::unique_ptr<Executor>> OffloadExecutor::Create(Options options) {
  DeviceApi& device = *options.device;
  const int64_t capacity = Aligned(std::max(options.window_bytes, options.whole_bytes));
  absl::StatusOr<std::shared_ptr<void>> stream = device.NewStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<std::unique_ptr<DeviceEvent>> begun = device.NewEvent();
  if (!begun.ok()) return begun.status();
  Windows windows;
  for (Window& window : windows) {
    for (Arrays* const arrays : {&window.gradients, &window.parameters}) {
      absl::StatusOr<std::shared_ptr<void>> memory = device.AllocateOnHost(capacity);
      if (!memory.ok()) {
        return errors::WithContext(
            memory.status(),
            absl::StrFormat("%d windows of %d bytes, through which parameters and gradients of %s "
                            "pass to the host's updates",
                            2 * windows.size(), capacity, device.name()));
      }
      *arrays = Arrays(*std::move(memory), capacity);
    }
    for (std::unique_ptr<DeviceEvent>* const event : {&window.is_full, &window.is_free}) {
      absl::StatusOr<std::unique_ptr<DeviceEvent>> made = device.NewEvent();
      if (!made.ok()) return made.status();
      *event = *std::move(made);
    }
  }
  return std::unique_ptr<Executor>(new OffloadExecutor(std::move(options), *std::move(stream),
                                                       std::move(windows), *std::move(begun)));
}

absl::StatusOr<std::unique_ptr<Ticket>> OffloadExecutor::Start(const ExecutionContext& context,
                                                               const UpdateRule& rule,
                                                               absl::Span<const UpdateTask> tasks) {
  return std::unique_ptr<Ticket>(std::make_unique<OffloadTicket>(this, context, rule, tasks));
}

absl::Status OffloadExecutor::Run(const ExecutionContext& context, const UpdateRule& rule,
                                  absl::Span<const UpdateTask> tasks, absl::Time deadline) {
  DeviceApi& device = *options_.device;
  absl::Status status = device.Record(*begun_, context.stream);
  if (status.ok()) status = device.OrderAfter(stream_.get(), *begun_);
  Pieces pieces(rule, tasks);
  size_t filled = 0;
  for (size_t updated = 0; status.ok(); ++updated) {
    while (status.ok() && !pieces.AtEnd() && filled < updated + windows_.size()) {
      status = Fill(windows_[filled++ % windows_.size()], pieces);
    }
    if (!status.ok() || updated == filled) break;
    status = Update(windows_[updated % windows_.size()], rule, context.stream, deadline);
  }
  // Windows that were to be next still read the trainer's memory.
  if (!status.ok()) AwaitStream(device, stream_.get(), deadline, *options_.clock).IgnoreError();
  return status;
}

// Behind what the device still takes out of the window.
absl::Status OffloadExecutor::Fill(Window& window, Pieces& pieces) {
  window.gradients.Clear();
  window.parameters.Clear();
  window.tasks.clear();
  window.reads_parameters = false;
  while (!pieces.AtEnd()) {
    absl::optional<UpdateTask> piece = pieces.Take(window);
    if (!piece.has_value()) break;
    SpanUpdate& span = piece->span;
    // What has a master is made of that.
    window.reads_parameters |= !span.master;
    // Nothing is written to it.
    const Buffer gradient(const_cast<void*>(span.gradient.data()), span.gradient.dtype());
    span.gradient = window.gradients.Take(gradient, span.elements);
    span.parameter = window.parameters.Take(span.parameter, span.elements);
    window.tasks.push_back(*piece);
  }
  if (window.tasks.empty()) {
    return absl::InternalError("a parameter is larger than the windows that it passes through");
  }
  DeviceApi& device = *options_.device;
  absl::Status status = device.OrderAfter(stream_.get(), *window.is_free);
  const auto copy = [&](const Arrays& arrays) {
    for (const Arrays::Copy& each : arrays.copies()) {
      if (!status.ok()) return;
      status = device.Copy(each.on_host, each.on_device, each.bytes, stream_.get());
    }
  };
  copy(window.gradients);
  if (window.reads_parameters) copy(window.parameters);
  return status.ok() ? device.Record(*window.is_full, stream_.get()) : status;
}

absl::Status OffloadExecutor::Update(Window& window, const UpdateRule& rule, void* stream,
                                     absl::Time deadline) {
  DeviceApi& device = *options_.device;
  absl::Status status = AwaitReached(device, *window.is_full, deadline, *options_.clock);
  if (!status.ok()) return status;
  const absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      options_.on_host->Start(ExecutionContext(), rule, window.tasks);
  if (!ticket.ok()) return ticket.status();
  status = (*ticket)->Wait(deadline);
  for (const Arrays::Copy& each : window.parameters.copies()) {
    if (!status.ok()) return status;
    status = device.Copy(each.on_device, each.on_host, each.bytes, stream);
  }
  return status.ok() ? device.Record(*window.is_free, stream) : status;
}

}  // namespace optshard
