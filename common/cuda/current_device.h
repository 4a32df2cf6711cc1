// Which device the calling thread's calls are for.
#ifndef OPTSHARD_COMMON_CUDA_CURRENT_DEVICE_H_
#define OPTSHARD_COMMON_CUDA_CURRENT_DEVICE_H_

#include "absl/status/status.h"

namespace optshard {

// Makes a device the thread's current one while it lives, and puts back what it was. A thread that
// has not chosen one has the first device: where nobody in the process uses that, it is not put
// back, since to do so would take memory of it for a context. Bound to a thread.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  // What UseDevice says (cuda_status.h).
  const absl::Status& status() const { return status_; }

 private:
  int before_ = 0;
  bool puts_back_ = false;
  absl::Status status_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_CURRENT_DEVICE_H_
