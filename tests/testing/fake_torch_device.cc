#include "tests/testing/fake_torch_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

// Of ATen/native/CPUFallback.h, which is not among the headers that we use.
namespace at::native {
TORCH_API void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                            bool error_on_views, c10::DispatchKey cpu_dispatch_key);
}  // namespace at::native

namespace optshard::testing {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 8;
constexpr absl::Duration kPatience = absl::Seconds(30);

struct Used {
  FakeDevices devices;
  std::vector<void*> streams;
};

class Current {
 public:
  void Set(absl::optional<Used> used) {
    absl::MutexLock lock(&mutex_);
    used_ = std::move(used);
  }
  void* StreamOf(int index) const {
    absl::MutexLock lock(&mutex_);
    const bool is_there = used_.has_value() && index < static_cast<int>(used_->streams.size());
    return is_there ? used_->streams[index] : nullptr;
  }
  // Until all that is on the stream of the device now has run; other threads may have to put more
  // on others' streams first.
  void Await(const at::Tensor& tensor) const {
    if (tensor.is_privateuseone()) Await(tensor.device().index());
  }
  void Await(int device) const {
    absl::optional<Used> used = Get();
    void* const stream = StreamOf(device);
    if (stream == nullptr || !used.has_value()) return;
    const auto reached = std::make_shared<std::atomic<bool>>(false);
    used->devices.Enqueue(stream, [reached] {
      *reached = true;
      return true;
    });
    const absl::Time deadline = absl::Now() + kPatience;
    for (used->devices.RunWhatCanRun(); !*reached; used->devices.RunWhatCanRun()) {
      if (absl::Now() > deadline) {
        std::fprintf(stderr, "what is on the stream of device %d did not run\n", device);
        std::abort();
      }
      absl::SleepFor(absl::Microseconds(50));
    }
  }

 private:
  absl::optional<Used> Get() const {
    absl::MutexLock lock(&mutex_);
    return used_;
  }

  mutable absl::Mutex mutex_;
  absl::optional<Used> used_ ABSL_GUARDED_BY(mutex_);
};

Current& Now() {
  static auto* const current = new Current;
  return *current;
}

thread_local c10::DeviceIndex device_of_this_thread = 0;

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(device_of_this_thread, device.index())};
  }
  c10::Device getDevice() const override { return {kType, device_of_this_thread}; }
  void setDevice(c10::Device device) const override { device_of_this_thread = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return Now().StreamOf(stream.device_index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  // All work is done when it is enqueued.
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

// What autograd asks.
class FakeHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return device_of_this_thread; }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_of_this_thread = device; }
};

// Of which device memory is.
class DeviceOfMemory {
 public:
  void Set(const void* memory, int device) {
    absl::MutexLock lock(&mutex_);
    devices_[memory] = device;
  }
  int Take(const void* memory) {
    absl::MutexLock lock(&mutex_);
    const int device = devices_.at(memory);
    devices_.erase(memory);
    return device;
  }

 private:
  absl::Mutex mutex_;
  std::map<const void*, int> devices_ ABSL_GUARDED_BY(mutex_);
};

DeviceOfMemory& Devices() {
  static auto* const devices = new DeviceOfMemory;
  return *devices;
}

class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (memory != nullptr) Devices().Set(memory, device_of_this_thread);
    return {memory, memory, &Free, c10::Device(kType, device_of_this_thread)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  // As a device does: work that is on its streams still has it.
  static void Free(void* memory) {
    if (memory != nullptr) Now().Await(Devices().Take(memory));
    std::free(memory);
  }
};

c10::DispatchKeySet Keys() { return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1); }

at::Tensor Empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(kType), Keys(),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor EmptyStrided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::GetAllocator(kType),
      Keys(), dtype.value_or(at::kFloat));
}

// The same memory as a tensor of the host.
at::Tensor OnHost(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  Now().Await(from);
  Now().Await(to);
  OnHost(to).copy_(OnHost(from));
  return to;
}

void SetSize(const at::Tensor& tensor, at::IntArrayRef sizes) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, tensor.itemsize());
  if (tensor.storage().nbytes() < bytes) {
    c10::Allocator* const allocator = c10::GetAllocator(kType);
    impl->set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                                              allocator->allocate(bytes), allocator, true));
  }
  impl->set_sizes_contiguous(sizes);
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  SetSize(to, from.sizes());
  return CopyFrom(from, to, false);
}

const at::Tensor& Resize(const at::Tensor& tensor, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  SetSize(tensor, C10_AS_INTARRAYREF_SLOW(size));
  return tensor;
}

at::Tensor View(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor AsStrided(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(tensor, size, stride, std::move(offset));
}

at::Tensor& Zero(at::Tensor& tensor) {
  Now().Await(tensor);
  OnHost(tensor).zero_();
  return tensor;
}

void OnTheHost(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const c10::IValue& argument : *stack) {
    if (argument.isTensor()) Now().Await(argument.toTensor());
  }
  at::native::cpu_fallback(op, stack, false, c10::DispatchKey::CPU);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("resize_", &Resize);
  m.impl("view", &View);
  m.impl("as_strided", &AsStrided);
  m.impl("zero_", &Zero);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&OnTheHost>());
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

bool RegisterOnce() {
  static FakeAllocator* const allocator = new FakeAllocator;
  static FakeHooks* const hooks = new FakeHooks;
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(hooks);
  c10::SetAllocator(kType, allocator);
  return true;
}

}  // namespace

FakeTorchDevice::FakeTorchDevice(FakeDevices devices, std::vector<void*> streams) {
  static const bool registered = RegisterOnce();
  static_cast<void>(registered);
  Now().Set(Used{std::move(devices), std::move(streams)});
}

FakeTorchDevice::~FakeTorchDevice() { Now().Set(absl::nullopt); }

c10::Device FakeTorchDevice::At(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

}  // namespace optshard::testing
