// NCCL in one process, for tests: the ranks share a hub, one thread a rank, over fake devices.
//
//   FakeDevices devices;
//   FakeNccl nccl(devices, FakeNccl::Options{});
//   std::shared_ptr<NcclApi> api = nccl.MakeApi(rank);
//
// It is as unforgiving as NCCL: collectives match by their number on each rank, messages between
// two ranks by their number there, and what does not match never completes. The calls of a group
// are one launch, which has its turn on its stream like any other work; a rank that does not come
// is waited for without end. Nothing is copied before all who take part have come, and then at
// once. Beyond that it takes note of calls that NCCL forbids (Misuses).
#ifndef OPTSHARD_TESTS_TESTING_FAKE_NCCL_H_
#define OPTSHARD_TESTS_TESTING_FAKE_NCCL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/dataplane/nccl/nccl_api.h"
#include "tests/testing/fake_device.h"

namespace optshard::testing {

class FakeNcclState;

// Thread-safe. What it made may outlive it; ranks whose Abort hangs are released by its end.
class FakeNccl {
 public:
  struct Options {
    // How often state() says kBusy after each launch, which is not on its stream until then.
    int busy_polls = 0;
    // Whether the other ranks' state() fails when one has aborted, as over a network. Over NVLink
    // kernels wait in silence.
    bool losses_are_errors = false;
  };

  FakeNccl(const FakeDevices& devices, const Options& options);
  ~FakeNccl();

  std::shared_ptr<NcclApi> MakeApi(Rank rank, int version = 22809);

  // Faults. FailAsync: the rank's state() returns `failure` from now on. Hang: its launches do not
  // begin any more. HangInAbort: its Abort blocks until ReleaseAbort, or until this object ends.
  void FailAsync(Rank rank, const absl::Status& failure);
  void Hang(Rank rank);
  // So many more of its launches begin, and then none before this is called again.
  void LetThrough(Rank rank, int64_t launches);
  void HangInAbort(Rank rank);
  void ReleaseAbort(Rank rank);

  // What a rank has launched, in order, as "send 16 bytes to 1" or "broadcast 8 bytes from 0"; the
  // calls of one group are joined by " + ".
  std::vector<std::string> Launches(Rank rank) const;
  int64_t RegisteredBytes(Rank rank) const;
  bool HasConnected(Rank rank) const;  // Connect was called
  bool HasBegunToAbort(Rank rank) const;
  bool HasAborted(Rank rank) const;  // Abort has returned
  bool IsDestroyed(Rank rank) const;

  // Calls that NCCL forbids, in words. Empty where there were none.
  std::vector<std::string> Misuses() const;

 private:
  const std::shared_ptr<FakeNcclState> state_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_NCCL_H_
