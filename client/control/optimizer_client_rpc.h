// Reads the optimizer state of a running job: all that it needs is the coordinator's address. It is
// no rank of the job, and no rank waits for it.
#ifndef OPTSHARD_CLIENT_CONTROL_OPTIMIZER_CLIENT_RPC_H_
#define OPTSHARD_CLIENT_CONTROL_OPTIMIZER_CLIENT_RPC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/control/state_pull_rpc.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"
#include "common/state_format.h"

namespace optshard {

// Without LibTorch. Thread-safe.
class OptimizerClient {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT
    std::string optimizer = "default";
    absl::Duration timeout = absl::Seconds(10);  // of a call of the coordinator
  };

  // One slot of one parameter, as a whole: every rank's part of it.
  struct Slot {
    int parameter = 0;  // index in spec().space
    std::string name;   // "exp_avg", ...; PyTorch's
    // Of the values that are read, in the host's byte order: float32 also where the owners keep 8
    // bits, and float64 of a number.
    StateFormat format = StateFormat::kFloat32;
    std::vector<int64_t> shape;  // [] of one number
    int64_t elements = 1;
    bool is_number = false;  // one for the whole parameter, such as "step"

    int64_t bytes() const { return elements * ElementBytes(format); }
  };

  struct ReadOptions {
    absl::Duration timeout = absl::Seconds(60);
    // As StatePullOptions. Without copies it takes no memory of the owners, and is for jobs of
    // which nobody steps.
    bool keep_copies = true;
    // By parameter, or empty: where their values go, in the parameter's dtype, of the same step.
    std::vector<char*> parameters;
    std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
    Cancellation* cancellation = nullptr;
  };

  // Asks what the optimizer is and makes its plan.
  //   UNAVAILABLE          no coordinator answers at the address
  //   NOT_FOUND            it knows no optimizer of the name
  //   FAILED_PRECONDITION  not all ranks have joined yet, or it makes another plan of the same spec
  //   UNIMPLEMENTED        an optimizer class steps a group: nobody else knows its slots
  static absl::StatusOr<std::unique_ptr<OptimizerClient>> Connect(const Options& options);

  virtual ~OptimizerClient() = default;

  // As it was when this was connected.
  virtual const OptimizerSpec& spec() const = 0;
  // All slots, by parameter. "step" is the last one of each.
  virtual const std::vector<Slot>& slots() const = 0;

  // Copies all slots, slots()[i] to `to[i]`, which has as many bytes: the state after one step, the
  // same for all slots, however training goes on. From all owners at once, each byte copied once. A
  // parameter that was never updated has "step" 0 and initial values. Its PulledStep has the
  // hyperparameters of that step, of each group of spec(), whose own are those it began with.
  //   INVALID_ARGUMENT     not one place a slot, or a parameter
  //   FAILED_PRECONDITION  param groups were added: connect anew; an owner is of another version
  //   others               as PullState and Connect
  virtual absl::StatusOr<PulledStep> ReadState(absl::Span<char* const> to,
                                               const ReadOptions& options) const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_CONTROL_OPTIMIZER_CLIENT_RPC_H_
