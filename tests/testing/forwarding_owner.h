// A link to an owner that passes everything on, for tests that change one call, or watch them.
#ifndef OPTSHARD_TESTS_TESTING_FORWARDING_OWNER_H_
#define OPTSHARD_TESTS_TESTING_FORWARDING_OWNER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/owner/owner_link.h"

namespace optshard::testing {

class ForwardingOwner : public OwnerLink {
 public:
  explicit ForwardingOwner(std::unique_ptr<OwnerLink> owner) : owner_(std::move(owner)) {}

  absl::Span<const ReplicaRegion> replica() const override { return owner_->replica(); }
  std::shared_ptr<const void> replica_memory() const override { return owner_->replica_memory(); }
  bool resumes() const override { return owner_->resumes(); }
  StepNumber finished_step() const override { return owner_->finished_step(); }
  absl::Status SyncParameters(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions,
                              absl::Duration timeout) override {
    return owner_->SyncParameters(replica, regions, timeout);
  }
  void KeepParameters(const std::shared_ptr<const ParameterMemory>& memory) override {
    owner_->KeepParameters(memory);
  }
  absl::Status AddGroups(const OptimizerSpec& spec,
                         const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                         const absl::Status& prepared, absl::Duration timeout) override {
    return owner_->AddGroups(spec, trainer_updates, prepared, timeout);
  }
  absl::Status GiveAddedValues(absl::Span<const ReplicaTensor> replica,
                               absl::Span<const ReplicaRegion> regions,
                               absl::Duration timeout) override {
    return owner_->GiveAddedValues(replica, regions, timeout);
  }
  absl::Status VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions,
                              absl::Duration timeout) override {
    return owner_->VerifyReplicas(replica, regions, timeout);
  }
  absl::StatusOr<StepInfo> Step(const StepInput& input) override { return owner_->Step(input); }
  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) override {
    return owner_->ShareBytes(share, timeout);
  }
  absl::StatusOr<StateAccess*> state(absl::Duration timeout) override {
    return owner_->state(timeout);
  }
  absl::Status FinishLoading(const LoadedStep& loaded, absl::Span<const ReplicaTensor> replica,
                             absl::Span<const ReplicaRegion> regions,
                             absl::Duration timeout) override {
    return owner_->FinishLoading(loaded, replica, regions, timeout);
  }
  absl::Status ReplaceState(absl::Duration timeout) override {
    return owner_->ReplaceState(timeout);
  }
  absl::Status SetBlob(absl::string_view blob) override { return owner_->SetBlob(blob); }
  const std::string& blob() const override { return owner_->blob(); }
  bool MakeRoom() override { return owner_->MakeRoom(); }
  absl::Status Stop(absl::Duration timeout) override { return owner_->Stop(timeout); }
  absl::Status failure() const override { return owner_->failure(); }
  int64_t state_bytes() const override { return owner_->state_bytes(); }
  const ShardView* view() const override { return owner_->view(); }
  const std::string& coordinator_address() const override { return owner_->coordinator_address(); }
  const std::string& owner_address() const override { return owner_->owner_address(); }
  absl::StatusOr<std::vector<std::string>> owner_addresses(absl::Duration timeout) const override {
    return owner_->owner_addresses(timeout);
  }

 private:
  const std::unique_ptr<OwnerLink> owner_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FORWARDING_OWNER_H_
