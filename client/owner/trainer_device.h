// The device that a trainer's parameters are on.
#ifndef OPTSHARD_CLIENT_OWNER_TRAINER_DEVICE_H_
#define OPTSHARD_CLIENT_OWNER_TRAINER_DEVICE_H_

#include <functional>
#include <string>

namespace optshard {

// Thread-compatible value type.
struct TrainerDevice {
  std::string name = "cpu";  // as LibTorch has it: "cuda:0"
  // Of a device: the stream on which the calling thread works, as the device's interface has it.
  std::function<void*()> current_stream = nullptr;

  bool is_cpu() const { return name == "cpu"; }
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_TRAINER_DEVICE_H_
