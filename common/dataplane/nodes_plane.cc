#include "common/dataplane/nodes_plane.h"

#include <utility>

namespace optshard {
namespace {

class NodesPlane final : public DataPlane {
 public:
  NodesPlane(std::unique_ptr<DataPlane> all, std::unique_ptr<DataPlane> node,
             std::vector<Rank> ranks)
      : all_(std::move(all)), node_(std::move(node)), node_ranks_{node_.get(), std::move(ranks)} {}

  Rank rank() const override { return all_->rank(); }
  int world_size() const override { return all_->world_size(); }
  const NodeRanks* node() const override { return &node_ranks_; }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag,
                                                 const ExecutionContext& context,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override {
    return all_->Reduce(tag, context, reduction, dtype, contribution, result, elements);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag,
                                                  const ExecutionContext& context, Rank owner,
                                                  absl::Span<const Rank> members, void* data,
                                                  size_t bytes) override {
    return all_->Publish(tag, context, owner, members, data, bytes);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag,
                                                    const ExecutionContext& context,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override {
    return all_->AllGather(tag, context, contribution, gathered, bytes_per_rank);
  }

  absl::Status status() override {
    absl::Status status = all_->status();
    status.Update(node_->status());
    return status;
  }

  void Abort(const absl::Status& reason) override {
    all_->Abort(reason);
    node_->Abort(reason);
  }

  absl::Status Close(absl::Time deadline) override {
    absl::Status closed = all_->Close(deadline);
    // Peers that wait for this rank in the node's plane learn why it does not come.
    if (!closed.ok()) node_->Abort(closed);
    closed.Update(node_->Close(deadline));
    return closed;
  }

 private:
  const std::unique_ptr<DataPlane> all_;
  const std::unique_ptr<DataPlane> node_;
  const NodeRanks node_ranks_;
};

}  // namespace

std::unique_ptr<DataPlane> JoinPlanes(std::unique_ptr<DataPlane> all,
                                      std::unique_ptr<DataPlane> node, std::vector<Rank> ranks) {
  return std::make_unique<NodesPlane>(std::move(all), std::move(node), std::move(ranks));
}

}  // namespace optshard
