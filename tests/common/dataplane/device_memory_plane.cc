#include "tests/common/dataplane/device_memory_plane.h"

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace optshard {
namespace {

// Device memory of one operation, and where it goes in the end.
struct Staged {
  std::vector<char> memory;
  void* output = nullptr;  // null where there is none
  std::unique_ptr<DeviceEvent> copied_back;
};

class StagedTicket final : public Ticket {
 public:
  StagedTicket(std::unique_ptr<Ticket> ticket, std::shared_ptr<DeviceApi> device,
               std::shared_ptr<Staged> staged)
      : ticket_(std::move(ticket)), device_(std::move(device)), staged_(std::move(staged)) {}

  absl::Status Wait(absl::Time deadline) override {
    absl::Status status = ticket_->Wait(deadline);
    if (!status.ok()) return status;
    while (true) {
      const absl::StatusOr<bool> reached = device_->IsReached(*staged_->copied_back);
      if (!reached.ok()) return reached.status();
      if (*reached) return absl::OkStatus();
      if (Clock::Monotonic().Now() >= deadline) return absl::DeadlineExceededError("the copy back");
      std::this_thread::yield();
    }
  }

  absl::Status OrderOn(const ExecutionContext& context) override {
    return ticket_->OrderOn(context);
  }

 private:
  const std::unique_ptr<Ticket> ticket_;
  const std::shared_ptr<DeviceApi> device_;
  const std::shared_ptr<Staged> staged_;
};

class DeviceMemoryPlane final : public DataPlane {
 public:
  DeviceMemoryPlane(std::unique_ptr<DataPlane> plane, const testing::FakeDevices& devices,
                    std::shared_ptr<DeviceApi> device, bool gathers_on_device)
      : devices_(devices),
        device_(std::move(device)),
        gathers_on_device_(gathers_on_device),
        plane_(std::move(plane)),
        stream_(*device_->NewStream()) {}

  Rank rank() const override { return plane_->rank(); }
  int world_size() const override { return plane_->world_size(); }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag, const ExecutionContext&,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override {
    const size_t in = contribution == nullptr || elements < 0 ? 0 : elements * SizeOf(dtype);
    const size_t out =
        result == nullptr || elements < 0 ? 0 : elements * SizeOf(ArithmeticOf(dtype));
    const size_t behind = (in + 15) / 16 * 16;  // numbers may be wider than what is summed
    auto staged = Stage(contribution, in, behind + out, result);
    char* const memory = staged->memory.data();
    // In place where the caller has it so.
    char* const to = result == contribution ? memory : memory + behind;
    return Finish(plane_->Reduce(tag, Context(), reduction, dtype, memory,
                                 result == nullptr ? nullptr : to, elements),
                  std::move(staged), to, out);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag, const ExecutionContext&,
                                                  Rank owner, absl::Span<const Rank> members,
                                                  void* data, size_t bytes) override {
    auto staged = Stage(data, bytes, bytes, data);
    char* const memory = staged->memory.data();
    return Finish(plane_->Publish(tag, Context(), owner, members, memory, bytes), std::move(staged),
                  memory, bytes);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag,
                                                    const ExecutionContext& context,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override {
    if (!gathers_on_device_) {
      return plane_->AllGather(tag, context, contribution, gathered, bytes_per_rank);
    }
    const size_t out = bytes_per_rank * world_size();
    auto staged = Stage(contribution, bytes_per_rank, bytes_per_rank + out, gathered);
    char* const memory = staged->memory.data();
    char* const to = memory + bytes_per_rank;
    return Finish(plane_->AllGather(tag, Context(), memory, to, bytes_per_rank), std::move(staged),
                  to, out);
  }

  absl::Status status() override { return plane_->status(); }
  void Abort(const absl::Status& reason) override { plane_->Abort(reason); }
  absl::Status Close(absl::Time deadline) override { return plane_->Close(deadline); }

 private:
  ExecutionContext Context() const { return {device_->name(), stream_.get()}; }

  std::shared_ptr<Staged> Stage(const void* input, size_t bytes, size_t all_bytes, void* output) {
    auto staged = std::make_shared<Staged>();
    staged->memory.assign(all_bytes, '\xff');
    staged->output = output;
    devices_.Enqueue(stream_.get(), [staged, input, bytes] {
      if (bytes > 0) std::memcpy(staged->memory.data(), input, bytes);
      return true;
    });
    return staged;
  }

  absl::StatusOr<std::unique_ptr<Ticket>> Finish(absl::StatusOr<std::unique_ptr<Ticket>> ticket,
                                                 std::shared_ptr<Staged> staged, const char* from,
                                                 size_t bytes) {
    if (!ticket.ok()) {
      devices_.RunWhatCanRun();  // the copy to the device: the caller's memory may go now
      return ticket.status();
    }
    // An operation that failed meanwhile says so when it is waited for.
    if ((*ticket)->OrderOn(Context()).ok()) {
      devices_.Enqueue(stream_.get(), [staged, from, bytes] {
        if (bytes > 0) std::memcpy(staged->output, from, bytes);
        return true;
      });
    }
    staged->copied_back = *device_->NewEvent();
    const absl::Status recorded = device_->Record(*staged->copied_back, stream_.get());
    if (!recorded.ok()) return recorded;
    return std::unique_ptr<Ticket>(
        std::make_unique<StagedTicket>(*std::move(ticket), device_, std::move(staged)));
  }

  testing::FakeDevices devices_;
  const std::shared_ptr<DeviceApi> device_;
  const bool gathers_on_device_;
  const std::unique_ptr<DataPlane> plane_;
  const std::shared_ptr<void> stream_;
};

}  // namespace

std::unique_ptr<DataPlane> OnDeviceMemory(std::unique_ptr<DataPlane> plane,
                                          const testing::FakeDevices& devices,
                                          std::shared_ptr<DeviceApi> device,
                                          bool gathers_on_device) {
  return std::make_unique<DeviceMemoryPlane>(std::move(plane), devices, std::move(device),
                                             gathers_on_device);
}

}  // namespace optshard
