#include "common/dataplane/gloo/gloo_plane.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dataplane/gloo/gloo_mesh.h"
#include "common/dataplane/gloo/scratch_pool.h"
#include "common/dataplane/operation_checks.h"
#include "common/dataplane/tree_average.h"
#include "common/errors.h"

namespace optshard {
namespace {

// What an operation is called in errors.
struct OperationName {
  const char* kind;
  StepTag tag;

  std::string operator()() const {
    return absl::StrCat(kind, " of generation ", tag.generation, ", step ", tag.step, ", bucket ",
                        tag.bucket);
  }
};

// Messages match by slot, in order between two ranks. The size is part of it: Gloo ends the process
// when a message is longer than the memory it is for, so those must not meet.
uint64_t Slot(const StepTag& tag, size_t bytes) {
  return (static_cast<uint64_t>(tag.phase) & 0x7) << 61 |
         (static_cast<uint64_t>(tag.bucket) & 0xfffff) << 41 |
         (static_cast<uint64_t>(tag.step) & 0x1ff) << 32 | (bytes & 0xffffffff);
}

// The operations of one rank. Bound to the step's thread.
class Operations {
 public:
  Operations(std::unique_ptr<GlooMesh> mesh, const GlooPlaneOptions& options)
      : scratch_(options.reduce_window_bytes), mesh_(std::move(mesh)) {}

  GlooMesh& mesh() { return *mesh_; }
  uint64_t NextSequence() { return next_sequence_++; }

  // Queues the owner's part of a reduction. Contributions are received as far as scratch memory
  // goes, and summed by FinishReduces.
  absl::Status QueueReduce(uint64_t sequence, const StepTag& tag, const Reduction& reduction,
                           DType dtype, const void* contribution, void* result, int64_t elements) {
    OwnedReduce reduce;
    reduce.sequence = sequence;
    reduce.tag = tag;
    reduce.reduction = reduction;
    reduce.dtype = dtype;
    reduce.contribution = contribution;
    reduce.result = result;
    reduce.elements = elements;
    owned_reduces_.push_back(std::move(reduce));
    return ReceiveContributions();
  }

  // Completes this rank's reductions up to and including `sequence`, in order. Every wait begins
  // with it: else two ranks, each waiting for the other to take a contribution for which it has no
  // memory, would wait for ever.
  absl::Status FinishReduces(uint64_t sequence, absl::Time deadline) {
    while (!owned_reduces_.empty() && owned_reduces_.front().sequence <= sequence) {
      OwnedReduce& reduce = owned_reduces_.front();
      absl::Status status =
          mesh_->Wait(&reduce.messages, deadline, OperationName{"Reduce", reduce.tag});
      if (!status.ok()) return status;
      std::vector<const void*> contributions;
      const size_t bytes = reduce.elements * SizeOf(reduce.dtype);
      const char* received = reduce.scratch.data.get();
      for (const Rank member : reduce.reduction.members) {
        contributions.push_back(member == mesh_->rank() ? reduce.contribution : received);
        if (member != mesh_->rank()) received += bytes;
      }
      ReduceGroups(reduce.reduction.group_sizes, reduce.reduction.divisor, reduce.dtype,
                   contributions, 0, reduce.elements, reduce.result);
      scratch_.Return(std::move(reduce.scratch));
      owned_reduces_.pop_front();
      --receiving_;
      if (status = ReceiveContributions(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  // A reduction to this rank.
  struct OwnedReduce {
    uint64_t sequence = 0;
    StepTag tag;
    Reduction reduction;
    DType dtype = DType::kFloat32;
    const void* contribution = nullptr;
    void* result = nullptr;
    int64_t elements = 0;
    ScratchPool::Block scratch;  // the others' contributions, in the members' order
    GlooMesh::Messages messages;
  };

  absl::Status ReceiveContributions() {
    while (receiving_ < owned_reduces_.size()) {
      OwnedReduce& reduce = owned_reduces_[receiving_];
      const size_t bytes = reduce.elements * SizeOf(reduce.dtype);
      absl::optional<ScratchPool::Block> block =
          scratch_.Take(bytes * (reduce.reduction.members.size() - 1));
      if (!block.has_value()) return absl::OkStatus();
      reduce.scratch = *std::move(block);
      ++receiving_;
      if (bytes == 0) continue;
      char* to = reduce.scratch.data.get();
      for (const Rank member : reduce.reduction.members) {
        if (member == mesh_->rank()) continue;
        absl::Status status =
            mesh_->Receive(member, Slot(reduce.tag, bytes), to, bytes, &reduce.messages);
        if (!status.ok()) return status;
        to += bytes;
      }
    }
    return absl::OkStatus();
  }

  uint64_t next_sequence_ = 0;
  ScratchPool scratch_;
  std::deque<OwnedReduce> owned_reduces_;
  size_t receiving_ = 0;  // how many of them have memory and receive
  // Destroyed first: then nothing is received into scratch memory any more.
  const std::unique_ptr<GlooMesh> mesh_;
};

class GlooTicket : public Ticket {
 public:
  GlooTicket(std::shared_ptr<Operations> operations, OperationName name)
      : operations_(std::move(operations)), name_(name), sequence_(operations_->NextSequence()) {}

  uint64_t sequence() const { return sequence_; }
  GlooMesh::Messages* messages() { return &messages_; }

  // Some of its messages could not be started.
  void Fail(const absl::Status& failure) { failure_ = failure; }

  absl::Status Wait(absl::Time deadline) override {
    if (!failure_.ok()) return failure_;
    absl::Status status = operations_->FinishReduces(sequence_, deadline);
    if (!status.ok()) return status;
    return operations_->mesh().Wait(&messages_, deadline, name_);
  }

  absl::Status OrderOn(const ExecutionContext&) override {
    return absl::FailedPreconditionError(
        "the Gloo data plane's memory is the host's: wait for the ticket instead");
  }

 private:
  const std::shared_ptr<Operations> operations_;
  const OperationName name_;
  const uint64_t sequence_;
  GlooMesh::Messages messages_;
  absl::Status failure_;
};

class GlooPlane : public DataPlane {
 public:
  explicit GlooPlane(std::shared_ptr<Operations> operations)
      : operations_(std::move(operations)), mesh_(operations_->mesh()), all_(mesh_.world_size()) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  // Tickets may live on; their connections do not.
  ~GlooPlane() override { mesh_.Break(absl::CancelledError("the data plane is destroyed")); }

  Rank rank() const override { return mesh_.rank(); }
  int world_size() const override { return mesh_.world_size(); }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag, const ExecutionContext&,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override {
    absl::Status may_start = CheckReduce(reduction, all_, elements);
    may_start.Update(mesh_.status());
    if (!may_start.ok()) return may_start;
    auto ticket = std::make_unique<GlooTicket>(operations_, OperationName{"Reduce", tag});
    const size_t bytes = elements * SizeOf(dtype);
    absl::Status status;
    if (reduction.owner == rank()) {
      status = operations_->QueueReduce(ticket->sequence(), tag, reduction, dtype, contribution,
                                        result, elements);
    } else if (bytes > 0 && reduction.Has(rank())) {
      status =
          mesh_.Send(reduction.owner, Slot(tag, bytes), contribution, bytes, ticket->messages());
    }
    if (!status.ok()) return status;
    return std::unique_ptr<Ticket>(std::move(ticket));
  }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag, const ExecutionContext&,
                                                  Rank owner, absl::Span<const Rank> members,
                                                  void* data, size_t bytes) override {
    absl::Status may_start = CheckPublish(owner, members, all_);
    may_start.Update(mesh_.status());
    if (!may_start.ok()) return may_start;
    auto ticket = std::make_unique<GlooTicket>(operations_, OperationName{"Publish", tag});
    const uint64_t slot = Slot(tag, bytes);
    absl::Status status;
    if (owner != rank()) {
      const bool takes_part = std::find(members.begin(), members.end(), rank()) != members.end();
      if (takes_part && bytes > 0) {
        status = mesh_.Receive(owner, slot, data, bytes, ticket->messages());
      }
      if (!status.ok()) return status;
      return std::unique_ptr<Ticket>(std::move(ticket));
    }
    for (const Rank member : members) {
      if (member == rank() || bytes == 0) continue;
      status = mesh_.Send(member, slot, data, bytes, ticket->messages());
      if (status.ok()) continue;
      // Members before it may have theirs.
      ticket->Fail(status);
      break;
    }
    return std::unique_ptr<Ticket>(std::move(ticket));
  }

  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag, const ExecutionContext&,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override {
    absl::Status may_start = CheckAllGather(bytes_per_rank);
    may_start.Update(mesh_.status());
    if (!may_start.ok()) return may_start;
    auto ticket = std::make_unique<GlooTicket>(operations_, OperationName{"AllGather", tag});
    if (bytes_per_rank == 0) return std::unique_ptr<Ticket>(std::move(ticket));
    const uint64_t slot = Slot(tag, bytes_per_rank);
    const auto place = [&](Rank of) { return static_cast<char*>(gathered) + of * bytes_per_rank; };
    std::memmove(place(rank()), contribution, bytes_per_rank);
    // All receives first: a message whose receive is known needs no round trip.
    for (Rank peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      absl::Status status =
          mesh_.Receive(peer, slot, place(peer), bytes_per_rank, ticket->messages());
      if (!status.ok()) return status;
    }
    for (Rank peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      absl::Status status =
          mesh_.Send(peer, slot, contribution, bytes_per_rank, ticket->messages());
      if (status.ok()) continue;
      // Lower ranks may have theirs.
      ticket->Fail(status);
      break;
    }
    return std::unique_ptr<Ticket>(std::move(ticket));
  }

  absl::Status status() override { return mesh_.status(); }

  void Abort(const absl::Status& reason) override { mesh_.Break(reason); }

  absl::Status Close(absl::Time deadline) override { return mesh_.Close(deadline); }

 private:
  const std::shared_ptr<Operations> operations_;
  GlooMesh& mesh_;
  std::vector<Rank> all_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> CreateGlooPlane(const GlooPlaneOptions& options) {
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of world size ", options.world_size));
  }
  absl::StatusOr<std::unique_ptr<GlooMesh>> mesh = GlooMesh::Connect(options);
  if (!mesh.ok()) return mesh.status();
  auto operations = std::make_shared<Operations>(*std::move(mesh), options);
  return std::unique_ptr<DataPlane>(std::make_unique<GlooPlane>(std::move(operations)));
}

}  // namespace optshard
