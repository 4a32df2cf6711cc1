// A second state of a rank, which is made while the one that counts is stepped and read, and then
// takes its place.
#ifndef OPTSHARD_SERVER_SHARD_STATE_STAGED_STATE_H_
#define OPTSHARD_SERVER_SHARD_STATE_STAGED_STATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/buffer.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "server/shard/state/mapped_memory.h"
#include "server/shard/state/replacing.h"
#include "server/shard/state/shard_store.h"

namespace optshard {

// Slots, step counts and scalar slots, and for kAll the values of what the rank owns of the
// parameters. Its memory is taken from a budget and given back with it. Thread-compatible.
class StagedState {
 public:
  // Of what `store` keeps, which outlives this, as before the first step; parameters are zeros.
  // RESOURCE_EXHAUSTED, with need and limit.
  static absl::StatusOr<std::unique_ptr<StagedState>> Create(const ShardStore& store, Rank rank,
                                                             Replacing what, MemoryBudget* budget);
  ~StagedState();
  StagedState(const StagedState&) = delete;
  StagedState& operator=(const StagedState&) = delete;

  Replacing what() const { return what_; }
  ShardStore& store() const { return *store_; }

  // For kAll. Replaces values of the parameter's elements, all of which are owned here: `from` is
  // of its type.
  void WriteParameter(int parameter, int64_t offset_elements, int64_t elements, const void* from);
  // Where it would write them; null where they do not lie in a row.
  char* ParameterMemory(int parameter, int64_t offset_elements, int64_t elements) const;

  // Some elements of a parameter in a row. No two have one in common; all owned ones are in some.
  struct Values {
    int parameter = 0;
    int64_t offset_elements = 0;
    int64_t elements = 0;
    Buffer from;
  };
  const std::vector<Values>& parameters() const { return parameters_; }  // in order

 private:
  StagedState(Replacing what, MemoryBudget* budget) : what_(what), budget_(*budget) {}

  absl::Status Allocate(const ShardStore& store, Rank rank);
  // The first ones of the parameter that end behind the offset, or what comes after it.
  std::vector<Values>::const_iterator ValuesAt(int parameter, int64_t offset_elements) const;

  const Replacing what_;
  MemoryBudget& budget_;
  int64_t reserved_bytes_ = 0;
  std::unique_ptr<ShardStore> store_;
  MappedMemory parameter_memory_;
  std::vector<Values> parameters_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_STAGED_STATE_H_
