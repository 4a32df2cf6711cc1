// What a rank keeps of state and parameters, as it can be staged at an owner.
#ifndef OPTSHARD_TESTS_TESTING_STATE_SHARE_H_
#define OPTSHARD_TESTS_TESTING_STATE_SHARE_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/state/state_access.h"

namespace optshard::testing {

struct StateShare {
  struct Slot {
    int parameter = 0;
    int slot = 0;
    int64_t offset_elements = 0;
    std::vector<double> values;

    friend bool operator==(const Slot& a, const Slot& b) {
      return std::tie(a.parameter, a.slot, a.offset_elements, a.values) ==
             std::tie(b.parameter, b.slot, b.offset_elements, b.values);
    }
  };
  struct Values {
    int parameter = 0;
    int64_t offset_elements = 0;
    std::string bytes;

    friend bool operator==(const Values& a, const Values& b) {
      return std::tie(a.parameter, a.offset_elements, a.bytes) ==
             std::tie(b.parameter, b.offset_elements, b.bytes);
    }
  };
  std::vector<Slot> slots;
  std::vector<Values> parameters;

  friend bool operator==(const StateShare& a, const StateShare& b) {
    return a.slots == b.slots && a.parameters == b.parameters;
  }
};

// Reads what the rank owns; `tensors` are all parameters, by index.
StateShare ReadShare(StateAccess& state, const OptimizerSpec& spec, Rank rank,
                     absl::Span<const ReplicaTensor> tensors);

// Begins staging, and stages all of it, without the parameters for kState.
absl::Status StageShare(StateAccess& state, const StateShare& share,
                        Replacing what = Replacing::kAll);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_STATE_SHARE_H_
