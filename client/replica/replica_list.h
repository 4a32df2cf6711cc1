// A rank's replica of all parameters: one Replica for each admission of param groups.
#ifndef OPTSHARD_CLIENT_REPLICA_REPLICA_LIST_H_
#define OPTSHARD_CLIENT_REPLICA_REPLICA_LIST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/replica/main_gradient.h"
#include "client/replica/parameter_list.h"
#include "client/replica/parameter_versions.h"
#include "client/replica/replica.h"
#include "common/dataplane/peer_replicas.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/snapshot/parameter_memory.h"

namespace optshard {

// The part of `all` that came by one admission, as a list of its own, with the indices of a space
// of its own. Its groups are those of `all`, also where nothing of them came then.
ParameterList ListOfAdmission(const ParameterList& all, int admission);

// Each call does as Replica's for all of them; parameters are counted over all admissions, and
// groups as ListOfAdmission does. What is there stays where it is when another one is added. Bound
// to the trainer's thread.
class ReplicaList {
 public:
  // `list` is that of the replica.
  void Add(const ParameterList& list, std::unique_ptr<Replica> replica);

  // As Replica::UseMapping; `regions` begin with those that are here.
  void UseMapping(absl::Span<const ReplicaRegion> regions,
                  const std::shared_ptr<const void>& owner);

  // Where one cannot be used, gradients of others may have been moved to where a step reads them.
  absl::Status Gather(const std::vector<bool>& all_rows = {});
  absl::Status GatherValues();
  absl::Span<const ReplicaTensor> tensors() const { return tensors_; }
  // Those of the trainer, not of Scatter.
  ParameterVersions& versions() { return *versions_; }
  // Where their values lie between calls; the same object as long as they stay there. Call after a
  // Gather.
  const std::shared_ptr<const ParameterMemory>& parameter_memory();
  // Empty unless all tensors lie in flat memory.
  absl::Span<const ReplicaRegion> regions() const { return regions_; }
  int64_t gradients_copied() const;
  void Scatter();
  void ZeroGradients(bool set_to_none);
  MainGradient* main_gradient(int index);
  // As MainGradient::TakeHandedOut, of a list of the same parameters.
  void TakeHandedOut(ReplicaList& other);

 private:
  bool MovesValues() const;

  struct Part {
    int parameters = 0;
    std::unique_ptr<Replica> replica;
  };
  void CollectTensors();

  std::vector<Part> parts_;  // by admission
  std::vector<ReplicaTensor> tensors_;
  std::vector<ReplicaRegion> regions_;
  const std::shared_ptr<ParameterVersions> versions_ = std::make_shared<ParameterVersions>();
  std::shared_ptr<const ParameterMemory> parameter_memory_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_REPLICA_LIST_H_
