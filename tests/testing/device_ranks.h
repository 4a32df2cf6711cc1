// The ranks of a ShardedOptimizer as threads of one process, each with its parameters on a fake
// device.
#ifndef OPTSHARD_TESTS_TESTING_DEVICE_RANKS_H_
#define OPTSHARD_TESTS_TESTING_DEVICE_RANKS_H_

#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/sharded_optimizer_options.h"
#include "common/device_api.h"
#include "common/ids.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/testing/fake_torch_device.h"

namespace optshard::testing {

// Thread-safe.
class DeviceRanks {
 public:
  explicit DeviceRanks(int world_size);

  // As RunServedRanks (client_ranks.h), with the rank's device.
  std::vector<absl::Status> Run(
      const std::function<void(ShardedOptimizerOptions options, c10::Device device)>& body);

  FakeDevices devices() const { return devices_; }
  void* stream(Rank rank) { return streams_[rank].get(); }  // LibTorch's current one

 private:
  const int world_size_;
  FakeDevices devices_;
  std::vector<std::shared_ptr<DeviceApi>> device_of_;  // by rank
  std::vector<std::shared_ptr<void>> streams_;         // likewise
  absl::Mutex mutex_;
  std::map<Generation, std::unique_ptr<NcclGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FakeTorchDevice> torch_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_DEVICE_RANKS_H_
