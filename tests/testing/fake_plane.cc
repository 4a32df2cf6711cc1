#include "tests/testing/fake_plane.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/dataplane/operation_checks.h"
#include "common/errors.h"
#include "tests/testing/fake_hub_state.h"
#include "tests/testing/fake_stream.h"

namespace optshard::testing {
namespace {

class FakeTicket : public Ticket {
 public:
  FakeTicket(std::shared_ptr<FakeHubState> state, Rank rank, const FakeOperationId& id)
      : state_(std::move(state)), rank_(rank), id_(id) {}

  absl::Status Wait(absl::Time deadline) override { return state_->Wait(rank_, id_, deadline); }

  absl::Status OrderOn(const ExecutionContext& context) override {
    if (!state_->delayed() || context.stream == nullptr) {
      return absl::FailedPreconditionError(
          "OrderOn needs the delayed fake plane and a FakeStream; wait for the ticket instead");
    }
    static_cast<FakeStream*>(context.stream)
        ->Enqueue([state = state_, rank = rank_, id = id_](absl::Time deadline) {
          return state->Wait(rank, id, deadline);
        });
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<FakeHubState> state_;
  const Rank rank_;
  const FakeOperationId id_;
};

class FakePlane : public DataPlane {
 public:
  FakePlane(std::shared_ptr<FakeHubState> state, Rank rank, int plane)
      : state_(std::move(state)), rank_(rank), plane_(plane) {
    const int node = plane == 0 ? state_->NodePlaneOf(rank) : 0;
    if (node == 0) return;
    node_plane_ = std::make_unique<FakePlane>(state_, rank, node);
    node_ = NodeRanks{node_plane_.get(), state_->ranks_of(node)};
  }

  // A rank's lives in both planes are one.
  ~FakePlane() override {
    if (plane_ > 0 || state_->Closing(rank_)) return;
    state_->Lose(rank_, absl::CancelledError("the plane is destroyed"),
                 errors::PeerLost(rank_, "its plane was destroyed before Close"));
  }

  Rank rank() const override { return rank_; }
  int world_size() const override { return state_->world_size(); }
  const PeerReplicas* peer_replicas() const override { return state_->replicas(plane_); }
  const NodeRanks* node() const override { return node_.has_value() ? &*node_ : nullptr; }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag, const ExecutionContext&,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override {
    const absl::Status valid = CheckReduce(reduction, state_->ranks_of(plane_), elements);
    if (!valid.ok()) return valid;
    FakeOperation op;
    op.kind = FakeKind::kReduce;
    op.tag = tag;
    op.ranks = reduction;
    op.dtype = dtype;
    op.bytes = elements * SizeOf(dtype);
    return Start(op, contribution, reduction.owner == rank_ ? result : nullptr);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag, const ExecutionContext&,
                                                  Rank owner, absl::Span<const Rank> members,
                                                  void* data, size_t bytes) override {
    absl::Status valid = CheckPublish(owner, members, state_->ranks_of(plane_));
    if (!valid.ok()) return valid;
    FakeOperation op;
    op.kind = FakeKind::kPublish;
    op.tag = tag;
    op.ranks.owner = owner;
    op.ranks.members.assign(members.begin(), members.end());
    op.bytes = bytes;
    return Start(op, owner == rank_ ? data : nullptr, owner == rank_ ? nullptr : data);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag, const ExecutionContext&,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override {
    if (absl::Status status = CheckAllGather(bytes_per_rank); !status.ok()) return status;
    FakeOperation op;
    op.kind = FakeKind::kAllGather;
    op.tag = tag;
    op.ranks.members = state_->ranks_of(plane_);
    op.bytes = bytes_per_rank;
    return Start(op, contribution, gathered);
  }

  absl::Status status() override { return state_->status(rank_); }

  void Abort(const absl::Status& reason) override {
    // Who is to blame is to blame for all; else it is this rank.
    state_->Lose(rank_, reason,
                 errors::RanksOf(reason).empty()
                     ? errors::PeerLost(rank_, "it aborted its data plane")
                     : reason);
  }

  absl::Status Close(absl::Time deadline) override {
    return plane_ == 0 ? state_->Close(rank_, deadline) : absl::OkStatus();
  }

 private:
  absl::StatusOr<std::unique_ptr<Ticket>> Start(const FakeOperation& op, const void* input,
                                                void* output) {
    const absl::StatusOr<FakeOperationId> id = state_->Start(rank_, plane_, op, input, output);
    if (!id.ok()) return id.status();
    return std::unique_ptr<Ticket>(std::make_unique<FakeTicket>(state_, rank_, *id));
  }

  const std::shared_ptr<FakeHubState> state_;
  const Rank rank_;
  const int plane_;  // as FakeOperationId
  std::unique_ptr<FakePlane> node_plane_;
  absl::optional<NodeRanks> node_;
};

}  // namespace

FakeHub::FakeHub(Options options) : state_(std::make_shared<FakeHubState>(std::move(options))) {}

FakeHub::~FakeHub() { state_->ReleaseHung(); }

std::unique_ptr<DataPlane> FakeHub::MakePlane(Rank rank) {
  return std::make_unique<FakePlane>(state_, rank, 0);
}

void FakeHub::ShareReplicas(PeerReplicas replicas) { state_->ShareReplicas(std::move(replicas)); }

void FakeHub::KillAt(Rank rank, int64_t operation) {
  state_->SetFault(rank, operation, absl::nullopt);
}

void FakeHub::HangAt(Rank rank, int64_t operation) {
  state_->SetFault(rank, absl::nullopt, operation);
}

void FakeHub::KillInWaitFor(Rank rank, int64_t operation) {
  state_->KillInWaitFor(rank, operation);
}

void FakeHub::Kill(Rank rank) {
  state_->Lose(rank, absl::CancelledError(absl::StrCat("rank ", rank, " was killed by the test")),
               errors::PeerLost(rank, "killed by the test"));
}

void FakeHub::ReleaseHung() { state_->ReleaseHung(); }

bool FakeHub::AwaitHung(Rank rank, absl::Time deadline) {
  return state_->AwaitHung(rank, deadline);
}

int64_t FakeHub::OperationsStarted(Rank rank) const { return state_->OperationsStarted(rank); }

int64_t FakeHub::PublishedBytes(Rank rank) const { return state_->PublishedBytes(rank); }

}  // namespace optshard::testing
