// What a shard owner keeps of its parameters, by slot names, to be read and replaced between steps.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "server/shard/state/kept_parts.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/shard_store.h"
#include "server/shard/state/staged_state.h"
#include "server/shard/state/state_access.h"
#include "server/update/group_update.h"

namespace optshard {

// Of the owner in this process. Whatever is asked for is checked before anything is touched.
class ShardState final : public StateAccess {
 public:
  struct Options {
    std::shared_ptr<const GenerationShape> shape;
    GroupUpdates groups;
    Rank rank = 0;
    ShardStore* store = nullptr;  // outlives this
    // Which the memory for what is staged is taken from; outlives this.
    MemoryBudget* budget = &MemoryBudget::Unlimited();
  };

  explicit ShardState(Options options) : options_(std::move(options)) {}

  std::vector<ParameterSlot> Slots(int parameter) const override;
  absl::Status Read(int parameter, int slot, int64_t offset_elements,
                    absl::Span<double> out) override;
  absl::Status Write(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values) override;
  absl::Status BeginStaging(Replacing what) override;
  absl::Status Stage(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values) override;
  absl::Status StageBytes(int parameter, int slot, int64_t offset_elements,
                          absl::Span<const char> values) override;
  absl::StatusOr<absl::Span<char>> StagedMemory(int parameter, int slot, int64_t offset_elements,
                                                int64_t bytes) override;
  absl::Status DropStaged() override;
  StagedState* staged() const { return staged_.get(); }  // null: nothing is

 private:
  absl::Status CheckParameter(int parameter) const;
  absl::StatusOr<ParameterSlot> Find(int parameter, int slot) const;
  // Where it has these elements here.
  absl::StatusOr<ParameterSlot> Find(int parameter, int slot, int64_t offset_elements,
                                     int64_t elements) const;
  absl::Status CheckValues(int parameter, const ParameterSlot& slot, int64_t offset_elements,
                           absl::Span<const double> values) const;
  KeptParts kept() const;
  absl::Status WriteTo(ShardStore& store, int parameter, int slot, int64_t offset_elements,
                       absl::Span<const double> values) const;
  absl::Status CheckStaged() const;
  // Elements that can be staged as bytes.
  struct StagedRange {
    bool of_parameter = false;
    int slot = 0;  // the store's, of a slot
    int64_t elements = 0;
  };
  absl::StatusOr<StagedRange> FindStaged(int parameter, int slot, int64_t offset_elements,
                                         int64_t bytes) const;
  absl::StatusOr<StagedRange> FindStagedSlot(int parameter, int slot, int64_t offset_elements,
                                             int64_t bytes) const;
  absl::StatusOr<StagedRange> FindStagedParameter(int parameter, int64_t offset_elements,
                                                  int64_t bytes) const;

  const Options options_;
  std::unique_ptr<StagedState> staged_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_
