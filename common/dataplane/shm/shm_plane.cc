#include "common/dataplane/shm/shm_plane.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dataplane/operation_checks.h"
#include "common/dataplane/shm/shm_operations.h"
#include "common/dataplane/shm/shm_peers.h"
#include "common/dataplane/tree_average.h"

namespace optshard {
namespace {

using Operation = ShmOperations::Operation;

class ShmTicket : public Ticket {
 public:
  ShmTicket(std::shared_ptr<ShmOperations> operations, std::shared_ptr<Operation> operation)
      : operations_(std::move(operations)), operation_(std::move(operation)) {}

  absl::Status Wait(absl::Time deadline) override {
    return operations_->Wait(*operation_, deadline);
  }

  absl::Status OrderOn(const ExecutionContext&) override {
    return absl::FailedPreconditionError(
        "the shared-memory data plane's memory is the host's: wait for the ticket instead");
  }

 private:
  const std::shared_ptr<ShmOperations> operations_;
  const std::shared_ptr<Operation> operation_;
};

class ShmPlane : public DataPlane {
 public:
  explicit ShmPlane(std::unique_ptr<ShmPeers> peers, const ShmPlaneOptions& options)
      : rank_(options.rank),
        world_size_(options.world_size),
        all_(peers->ranks()),
        operations_(std::make_shared<ShmOperations>(std::move(peers), options)) {
    for (const Rank peer : all_) {
      if (peer != rank_) others_.push_back(peer);
    }
  }

  // Tickets may live on; they end.
  ~ShmPlane() override {
    if (operations_->status().ok()) {
      operations_->Break(absl::CancelledError("the data plane is destroyed"));
    }
  }

  Rank rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  const PeerReplicas* peer_replicas() const override { return operations_->peers().replicas(); }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag, const ExecutionContext&,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override {
    absl::Status may_start = CheckReduce(reduction, all_, elements);
    may_start.Update(operations_->status());
    if (!may_start.ok()) return may_start;
    auto operation = std::make_shared<Operation>();
    operation->kind = "Reduce";
    operation->tag = tag;
    std::vector<Rank> senders;
    for (const Rank member : reduction.members) {
      if (member != reduction.owner) senders.push_back(member);
    }
    if (reduction.owner != rank_) {
      if (reduction.Has(rank_)) {
        operation->send = static_cast<const char*>(contribution);
        operation->readers = {reduction.owner};
      }
    } else if (senders.empty()) {
      ReduceGroups(reduction.group_sizes, reduction.divisor, dtype, {contribution}, 0, elements,
                   result);
    } else {
      operation->sums = true;
      operation->reduction = reduction;
      operation->dtype = dtype;
      operation->contribution = static_cast<const char*>(contribution);
      operation->result = static_cast<char*>(result);
      for (const Rank sender : senders) operation->receives.push_back({sender, nullptr, 0, 0, 0});
    }
    return Start(std::move(operation), senders, elements * SizeOf(dtype));
  }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag, const ExecutionContext&,
                                                  Rank owner, absl::Span<const Rank> members,
                                                  void* data, size_t bytes) override {
    absl::Status may_start = CheckPublish(owner, members, all_);
    may_start.Update(operations_->status());
    if (!may_start.ok()) return may_start;
    auto operation = std::make_shared<Operation>();
    operation->kind = "Publish";
    operation->tag = tag;
    if (owner == rank_) {
      operation->send = static_cast<const char*>(data);
      for (const Rank member : members) {
        if (member != owner) operation->readers.push_back(member);
      }
    } else if (std::find(members.begin(), members.end(), rank_) != members.end()) {
      operation->receives.push_back({owner, static_cast<char*>(data), 0, 0, 0});
    }
    return Start(std::move(operation), {owner}, bytes);
  }

  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag, const ExecutionContext&,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override {
    absl::Status may_start = CheckAllGather(bytes_per_rank);
    may_start.Update(operations_->status());
    if (!may_start.ok()) return may_start;
    const auto place = [&](Rank of) { return static_cast<char*>(gathered) + of * bytes_per_rank; };
    if (bytes_per_rank > 0) std::memmove(place(rank_), contribution, bytes_per_rank);
    auto operation = std::make_shared<Operation>();
    operation->kind = "AllGather";
    operation->tag = tag;
    operation->send = static_cast<const char*>(contribution);
    operation->readers = others_;
    for (const Rank peer : others_) operation->receives.push_back({peer, place(peer), 0, 0, 0});
    return Start(std::move(operation), all_, bytes_per_rank);
  }

  absl::Status status() override { return operations_->status(); }

  void Abort(const absl::Status& reason) override { operations_->Break(reason); }

  absl::Status Close(absl::Time deadline) override { return operations_->Close(deadline); }

 private:
  absl::StatusOr<std::unique_ptr<Ticket>> Start(std::shared_ptr<Operation> operation,
                                                absl::Span<const Rank> senders, size_t bytes) {
    operations_->Start(operation, senders, bytes);
    return std::unique_ptr<Ticket>(std::make_unique<ShmTicket>(operations_, std::move(operation)));
  }

  const Rank rank_;
  const int world_size_;
  const std::vector<Rank> all_;  // of the plane
  const std::shared_ptr<ShmOperations> operations_;
  std::vector<Rank> others_;
};

bool IsAscendingWith(const ShmPlaneOptions& options) {
  const std::vector<Rank>& ranks = options.ranks;
  return std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>()) && ranks.front() >= 0 &&
         ranks.back() < options.world_size &&
         std::binary_search(ranks.begin(), ranks.end(), options.rank);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> CreateShmPlane(const ShmPlaneOptions& options) {
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of world size ", options.world_size));
  }
  if (!options.ranks.empty() && !IsAscendingWith(options)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks of the plane are ", absl::StrJoin(options.ranks, ", "),
                     "; expected ranks below ", options.world_size, " in ascending order, with ",
                     options.rank, " among them"));
  }
  absl::StatusOr<std::unique_ptr<ShmPeers>> peers = ShmPeers::Connect(options);
  if (!peers.ok()) return peers.status();
  return std::unique_ptr<DataPlane>(std::make_unique<ShmPlane>(*std::move(peers), options));
}

}  // namespace optshard
