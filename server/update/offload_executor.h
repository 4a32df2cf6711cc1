// Updates on a host's threads of parameters that lie on a device.
#ifndef OPTSHARD_SERVER_UPDATE_OFFLOAD_EXECUTOR_H_
#define OPTSHARD_SERVER_UPDATE_OFFLOAD_EXECUTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/clock.h"
#include "common/device_api.h"
#include "common/dtype.h"
#include "server/update/executor.h"

namespace optshard {

// Parameters and gradients of a task lie on the device, all else in memory of the host. They pass
// through windows of pinned memory: while the host updates one, the device fills the next, and
// takes back the one before. Many small tasks share a window; a large one is cut, unless its rule
// needs it whole.
//
// Start begins nothing: the ticket's Wait does the work, and is OK when the last values are on
// their way back, behind what is on the context's stream and before what is put there later.
class OffloadExecutor final : public Executor {
 public:
  static constexpr int kWindows = 6;  // three of gradients, and as many of parameters

  struct Options {
    DeviceApi* device = nullptr;        // outlives the executor
    std::unique_ptr<Executor> on_host;  // of arrays in memory of the host
    const Clock* clock = nullptr;       // of deadlines; outlives the executor
    // What of parameters, and of gradients, passes at once; kCodeGrid elements at least.
    int64_t window_bytes = int64_t{2} << 20;
    // What passes at once of parameters whose rule needs them whole, or of their gradients: the
    // largest at least.
    int64_t whole_bytes = 0;
  };

  // RESOURCE_EXHAUSTED, and the device's errors.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Options options);

  // `context` is of the device; the tasks stay until Wait has returned. Errors of Wait are the
  // host's executor's and the device's, and DEADLINE_EXCEEDED naming the device; some of the tasks
  // may be done then.
  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override;

  absl::Status CheckRuns(const UpdateRule& rule) const override {
    return options_.on_host->CheckRuns(rule);
  }

 private:
  // Arrays in pinned memory, one behind the other. Each is a copy of its own, also beside one that
  // is adjacent on the device: the two may be of different allocations, over whose end no copy
  // goes.
  class Arrays {
   public:
    struct Copy {
      char* on_host = nullptr;
      char* on_device = nullptr;
      size_t bytes = 0;
    };

    Arrays() = default;
    Arrays(std::shared_ptr<void> memory, int64_t capacity)
        : memory_(std::move(memory)), capacity_(capacity) {}

    void Clear();
    int64_t Room(DType dtype) const;  // how many elements of another array there may be
    // Where an array that lies on the device so lies here.
    Buffer Take(Buffer on_device, int64_t elements);
    absl::Span<const Copy> copies() const { return copies_; }

   private:
    int64_t NextAligned() const;

    std::shared_ptr<void> memory_;
    int64_t capacity_ = 0;
    int64_t used_ = 0;
    std::vector<Copy> copies_;
  };
  struct Window {
    Arrays gradients;
    Arrays parameters;
    bool reads_parameters = false;
    std::vector<UpdateTask> tasks;  // of arrays on the host alone
    std::unique_ptr<DeviceEvent> is_full;
    std::unique_ptr<DeviceEvent> is_free;
  };
  using Windows = std::array<Window, kWindows / 2>;
  class Pieces;
  class OffloadTicket;

  OffloadExecutor(Options options, std::shared_ptr<void> stream, Windows windows,
                  std::unique_ptr<DeviceEvent> begun)
      : options_(std::move(options)),
        windows_(std::move(windows)),
        stream_(std::move(stream)),
        begun_(std::move(begun)) {}

  absl::Status Run(const ExecutionContext& context, const UpdateRule& rule,
                   absl::Span<const UpdateTask> tasks, absl::Time deadline);
  absl::Status Fill(Window& window, Pieces& pieces);
  absl::Status Update(Window& window, const UpdateRule& rule, void* stream, absl::Time deadline);

  const Options options_;
  // Freed in the reverse order: the stream's work uses the windows.
  Windows windows_;
  const std::shared_ptr<void> stream_;  // on which windows are filled
  const std::unique_ptr<DeviceEvent> begun_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_OFFLOAD_EXECUTOR_H_
