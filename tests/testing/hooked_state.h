// A rank's state that calls a test back before some of its calls.
#ifndef OPTSHARD_TESTS_TESTING_HOOKED_STATE_H_
#define OPTSHARD_TESTS_TESTING_HOOKED_STATE_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/shard/state/state_access.h"

namespace optshard::testing {

class HookedState final : public StateAccess {
 public:
  enum class Call { kBegin, kStage };  // of staging; of some elements
  // An error stands for the call's.
  using Hook = std::function<absl::Status(Call)>;

  HookedState(StateAccess* state, Hook hook) : state_(*state), hook_(std::move(hook)) {}

  std::vector<ParameterSlot> Slots(int parameter) const override { return state_.Slots(parameter); }
  absl::Status Read(int parameter, int slot, int64_t offset_elements,
                    absl::Span<double> out) override {
    return state_.Read(parameter, slot, offset_elements, out);
  }
  absl::Status Write(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values) override {
    return state_.Write(parameter, slot, offset_elements, values);
  }
  absl::Status BeginStaging(Replacing what) override {
    absl::Status hooked = hook_(Call::kBegin);
    return hooked.ok() ? state_.BeginStaging(what) : hooked;
  }
  absl::Status Stage(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values) override {
    absl::Status hooked = hook_(Call::kStage);
    return hooked.ok() ? state_.Stage(parameter, slot, offset_elements, values) : hooked;
  }
  absl::Status StageBytes(int parameter, int slot, int64_t offset_elements,
                          absl::Span<const char> values) override {
    absl::Status hooked = hook_(Call::kStage);
    return hooked.ok() ? state_.StageBytes(parameter, slot, offset_elements, values) : hooked;
  }
  absl::StatusOr<absl::Span<char>> StagedMemory(int parameter, int slot, int64_t offset_elements,
                                                int64_t bytes) override {
    const auto memory = state_.StagedMemory(parameter, slot, offset_elements, bytes);
    if (!memory.ok() || memory->empty()) return memory;
    absl::Status hooked = hook_(Call::kStage);
    if (!hooked.ok()) return hooked;
    return memory;
  }
  absl::Status DropStaged() override { return state_.DropStaged(); }

 private:
  StateAccess& state_;
  const Hook hook_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_HOOKED_STATE_H_
