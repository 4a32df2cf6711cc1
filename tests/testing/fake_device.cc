#include "tests/testing/fake_device.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/dataplane/tree_average.h"
#include "gtest/gtest.h"

namespace optshard::testing {

// The streams of all devices. Work runs under the lock.
class FakeDevicesState {
 public:
  using Stream = std::deque<FakeDevices::Work>;

  Stream* AddStream() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++synchronisations_[std::this_thread::get_id()];
    streams_.emplace_back();
    return &streams_.back();
  }

  // What cannot run yet never does.
  void RemoveStream(Stream* stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    RunWhatCanRun();
    absl::MutexLock lock(&mutex_);
    streams_.remove_if([&](const Stream& other) { return &other == stream; });
  }

  void Enqueue(void* stream, FakeDevices::Work work) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    static_cast<Stream*>(stream)->push_back(std::move(work));
  }

  // `run` under the lock in which all work runs.
  absl::Status Locked(const std::function<void()>& run) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) run();
    return failure_;
  }

  void RunWhatCanRun() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::vector<Stream*> streams;
    for (Stream& stream : streams_) {
      if (!stream.empty()) streams.push_back(&stream);
    }
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(streams.begin(), streams.end(), random_);
      for (Stream* const stream : streams) {
        while (!stream->empty() && stream->front()()) {
          stream->pop_front();
          moved = true;
        }
      }
    }
  }

  void CountSynchronisation() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++synchronisations_[std::this_thread::get_id()];
  }
  int64_t Synchronisations() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return synchronisations_[std::this_thread::get_id()];
  }

  void Fail(const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    failure_ = failure;
  }

 private:
  absl::Mutex mutex_;
  std::list<Stream> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<std::thread::id, int64_t> synchronisations_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::minstd_rand random_ ABSL_GUARDED_BY(mutex_){
      static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed() + 1)};
};

namespace {

constexpr std::align_val_t kAlignment{256};  // as that of cudaMalloc

// Whether the stream on which the event was recorded last has reached that point; one that was
// never recorded is reached. Read and written by work and in FakeDevicesState::Locked only.
struct FakeEvent final : DeviceEvent {
  std::shared_ptr<bool> reached = std::make_shared<bool>(true);
};

class FakeDevice final : public DeviceApi {
 public:
  FakeDevice(std::shared_ptr<FakeDevicesState> state, std::string name, std::string identity)
      : state_(std::move(state)), name_(std::move(name)), identity_(std::move(identity)) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<std::string> Identity() override { return identity_; }
  absl::StatusOr<std::string> HardwareId() override { return identity_; }

  absl::StatusOr<std::shared_ptr<void>> NewStream() override {
    return std::shared_ptr<void>(state_->AddStream(), [state = state_](void* stream) {
      state->RemoveStream(static_cast<FakeDevicesState::Stream*>(stream));
    });
  }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<FakeEvent>());
  }

  // Freed memory may be wanted by work that is still on a stream: then a sanitizer says so.
  absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes) override {
    state_->CountSynchronisation();
    void* const memory = ::operator new(bytes, kAlignment);
    std::memset(memory, 0xff, bytes);
    return std::shared_ptr<void>(memory, [state = state_](void* data) {
      state->CountSynchronisation();
      state->RunWhatCanRun();
      ::operator delete(data, kAlignment);
    });
  }

  absl::StatusOr<std::shared_ptr<void>> AllocateOnHost(size_t bytes) override {
    return Allocate(bytes);
  }

  absl::StatusOr<SharedMemory> AllocateShared(size_t bytes) override {
    SharedMemory shared;
    shared.descriptor = UniqueFd(memfd_create(identity_.c_str(), MFD_CLOEXEC));
    if (bytes == 0 || ftruncate(shared.descriptor.get(), static_cast<off_t>(bytes)) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("shared memory of ", bytes, " bytes"));
    }
    absl::StatusOr<std::shared_ptr<void>> mapped = MapShared(shared.descriptor.get(), bytes);
    if (!mapped.ok()) return mapped.status();
    shared.memory = *std::move(mapped);
    std::memset(shared.memory.get(), 0xff, bytes);
    return shared;
  }

  // Each mapping has an address of its own.
  absl::StatusOr<std::shared_ptr<void>> MapShared(int descriptor, size_t bytes) override {
    state_->CountSynchronisation();
    struct stat file;
    void* const memory =
        fstat(descriptor, &file) != 0 || static_cast<size_t>(file.st_size) != bytes
            ? MAP_FAILED
            : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) {
      return absl::InvalidArgumentError(
          absl::StrCat("the descriptor is not that of ", bytes, " bytes of memory of ", name_));
    }
    return std::shared_ptr<void>(memory, [state = state_, bytes](void* data) {
      state->CountSynchronisation();
      state->RunWhatCanRun();
      munmap(data, bytes);
    });
  }

  absl::Status Record(DeviceEvent& event, void* stream) override {
    auto reached = std::make_shared<bool>(false);
    absl::Status status = state_->Locked([&] { static_cast<FakeEvent&>(event).reached = reached; });
    if (!status.ok()) return status;
    state_->Enqueue(Of(stream), [reached] { return *reached = true; });
    return status;
  }

  absl::Status OrderAfter(void* stream, const DeviceEvent& event) override {
    std::shared_ptr<bool> reached;
    absl::Status status =
        state_->Locked([&] { reached = static_cast<const FakeEvent&>(event).reached; });
    if (!status.ok()) return status;
    state_->Enqueue(Of(stream), [reached] { return *reached; });
    return status;
  }

  absl::StatusOr<bool> IsReached(const DeviceEvent& event) override {
    state_->CountSynchronisation();
    state_->RunWhatCanRun();
    bool reached = false;
    const absl::Status status =
        state_->Locked([&] { reached = *static_cast<const FakeEvent&>(event).reached; });
    if (!status.ok()) return status;
    return reached;
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, void* stream) override {
    return EnqueueIfItWorks(stream, [=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }

  absl::Status Zero(void* to, size_t bytes, void* stream) override {
    return EnqueueIfItWorks(stream, [=] {
      if (bytes > 0) std::memset(to, 0, bytes);
    });
  }

  absl::Status AverageInOrder(absl::Span<const int> group_sizes, int divisor, DType dtype,
                              absl::Span<const void* const> contributions, int64_t elements,
                              void* result, void* stream) override {
    return EnqueueIfItWorks(
        stream,
        [sizes = std::vector<int>(group_sizes.begin(), group_sizes.end()), divisor, dtype,
         values = std::vector<const void*>(contributions.begin(), contributions.end()), elements,
         result] { ReduceGroups(sizes, divisor, dtype, values, 0, elements, result); });
  }

 private:
  void* Of(void* stream) const { return stream == nullptr ? default_stream_ : stream; }

  absl::Status EnqueueIfItWorks(void* stream, std::function<void()> work) {
    absl::Status status = state_->Locked([] {});
    if (!status.ok()) return status;
    state_->Enqueue(Of(stream), [work = std::move(work)] {
      work();
      return true;
    });
    return status;
  }

  const std::shared_ptr<FakeDevicesState> state_;
  const std::string name_;
  const std::string identity_;
  FakeDevicesState::Stream* const default_stream_ = state_->AddStream();
};

}  // namespace

FakeDevices::FakeDevices() : state_(std::make_shared<FakeDevicesState>()) {}

std::shared_ptr<DeviceApi> FakeDevices::Add(std::string name, std::string identity) {
  return std::make_shared<FakeDevice>(state_, std::move(name), std::move(identity));
}

void FakeDevices::Enqueue(void* stream, Work work) { state_->Enqueue(stream, std::move(work)); }

void FakeDevices::EnqueueCopy(void* stream, void* to, const void* from, size_t bytes) {
  state_->Enqueue(stream, [=] {
    if (bytes > 0) std::memmove(to, from, bytes);
    return true;
  });
}

void FakeDevices::RunWhatCanRun() { state_->RunWhatCanRun(); }

int64_t FakeDevices::HostSynchronisations() const { return state_->Synchronisations(); }

void FakeDevices::Fail(const absl::Status& failure) { state_->Fail(failure); }

}  // namespace optshard::testing
