#include "common/dataplane/nccl/nccl_plane.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/dataplane/operation_checks.h"

namespace optshard {
namespace {

constexpr size_t kLeastWindowOfAPeer = 4096;

// Pieces of a bucket begin at multiples of it, so that vectors of the device stay aligned.
constexpr int64_t kPieceElements = 64;

std::string NameOf(absl::string_view kind, const StepTag& tag) {
  return absl::StrCat(kind, " of generation ", tag.generation, ", step ", tag.step, ", bucket ",
                      tag.bucket, " over NCCL");
}

bool IsHost(const ExecutionContext& context) { return context.device == "cpu"; }

absl::Status NotAStream(const ExecutionContext& context, const std::string& device) {
  return absl::FailedPreconditionError(
      absl::StrCat("an operation on ", device, " cannot be ordered on a stream of \"",
                   context.device, "\": wait for the ticket instead"));
}

// Of an operation in which this rank takes no part: there is nothing to wait for.
class NoPart final : public Ticket {
 public:
  explicit NoPart(std::string device) : device_(std::move(device)) {}

  absl::Status Wait(absl::Time) override { return absl::OkStatus(); }
  absl::Status OrderOn(const ExecutionContext& context) override {
    return context.device == device_ ? absl::OkStatus() : NotAStream(context, device_);
  }

 private:
  const std::string device_;
};

class NcclTicket final : public Ticket {
 public:
  NcclTicket(std::shared_ptr<NcclLink> link,
             absl::StatusOr<std::shared_ptr<const NcclOperation>> operation)
      : link_(std::move(link)), operation_(std::move(operation)) {}

  absl::Status Wait(absl::Time deadline) override {
    return operation_.ok() ? link_->Wait(**operation_, deadline) : operation_.status();
  }

  absl::Status OrderOn(const ExecutionContext& context) override {
    const std::string& device = link_->device().name();
    if (context.device != device) return NotAStream(context, device);
    return operation_.ok() ? link_->OrderAfter(context.stream, **operation_) : operation_.status();
  }

 private:
  const std::shared_ptr<NcclLink> link_;
  // An error: some of it may have been enqueued, so that others may have all they need.
  const absl::StatusOr<std::shared_ptr<const NcclOperation>> operation_;
};

// Of an operation of the host plane, whose failure is that of both planes.
class HostTicket final : public Ticket {
 public:
  HostTicket(std::shared_ptr<NcclLink> link, std::unique_ptr<Ticket> ticket)
      : link_(std::move(link)), ticket_(std::move(ticket)) {}

  absl::Status Wait(absl::Time deadline) override {
    const absl::Status status = ticket_->Wait(deadline);
    return status.ok() ? status : link_->Fail(status);
  }
  absl::Status OrderOn(const ExecutionContext& context) override {
    return ticket_->OrderOn(context);
  }

 private:
  const std::shared_ptr<NcclLink> link_;
  const std::unique_ptr<Ticket> ticket_;
};

std::vector<Rank> Without(absl::Span<const Rank> ranks, Rank without) {
  std::vector<Rank> others;
  for (const Rank rank : ranks) {
    if (rank != without) others.push_back(rank);
  }
  return others;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> NcclPlane::Create(const NcclPlaneOptions& options,
                                                             std::unique_ptr<DataPlane> host) {
  if (options.rank != host->rank() || options.world_size != host->world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank, " of world size ", options.world_size, ", but the host plane is of ",
        "rank ", host->rank(), " of world size ", host->world_size()));
  }
  const size_t least = kLeastWindowOfAPeer * std::max(1, options.world_size - 1);
  if (options.reduce_window_bytes < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduce_window_bytes is ", options.reduce_window_bytes, "; expected at least ",
                     least, " for ", options.world_size, " ranks"));
  }
  if (options.deterministic && options.world_size > DeviceApi::kMaxContributions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a deterministic NCCL data plane has at most ", DeviceApi::kMaxContributions,
                     " ranks, and this job has ", options.world_size));
  }
  absl::StatusOr<std::shared_ptr<NcclLink>> link = NcclLink::Connect(options, host.get());
  if (!link.ok()) return link.status();
  return std::unique_ptr<DataPlane>(new NcclPlane(options, std::move(host), *std::move(link)));
}

NcclPlane::NcclPlane(const NcclPlaneOptions& options, std::unique_ptr<DataPlane> host,
                     std::shared_ptr<NcclLink> link)
    : rank_(options.rank),
      all_(options.world_size),
      deterministic_(options.deterministic),
      window_bytes_(options.reduce_window_bytes),
      host_(std::move(host)),
      link_(std::move(link)) {
  std::iota(all_.begin(), all_.end(), 0);
}

// Tickets may live on; they end.
NcclPlane::~NcclPlane() { link_->Leave(); }

absl::Status NcclPlane::status() {
  absl::Status status = link_->status();
  status.Update(host_->status());
  return status;
}

absl::Status NcclPlane::MayStart(const absl::Status& valid, const ExecutionContext& context) {
  if (!valid.ok()) return valid;
  const std::string& device = link_->device().name();
  if (context.device != device) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory on \"", context.device, "\"; the data plane has \"cpu\" and \"", device, "\""));
  }
  const absl::Status broken = status();
  return broken.ok() ? broken : link_->Fail(broken);
}

absl::StatusOr<std::unique_ptr<Ticket>> NcclPlane::OfHost(
    absl::StatusOr<std::unique_ptr<Ticket>> started) {
  if (started.ok()) {
    return std::unique_ptr<Ticket>(std::make_unique<HostTicket>(link_, *std::move(started)));
  }
  // Arguments that are refused break nothing.
  return host_->status().ok() ? started.status() : link_->Fail(started.status());
}

absl::StatusOr<std::unique_ptr<Ticket>> NcclPlane::Reduce(const StepTag& tag,
                                                          const ExecutionContext& context,
                                                          const Reduction& reduction, DType dtype,
                                                          const void* contribution, void* result,
                                                          int64_t elements) {
  if (IsHost(context)) {
    return OfHost(host_->Reduce(tag, context, reduction, dtype, contribution, result, elements));
  }
  const absl::Status may_start = MayStart(CheckReduce(reduction, all_, elements), context);
  if (!may_start.ok()) return may_start;
  if (!reduction.Has(rank_) || elements == 0) {
    return std::unique_ptr<Ticket>(std::make_unique<NoPart>(context.device));
  }
  const bool as_nccl_does = !deterministic_ && reduction.members.size() == all_.size();
  return std::unique_ptr<Ticket>(std::make_unique<NcclTicket>(
      link_, link_->Enqueue(NameOf("Reduce", tag),
                            rank_ == reduction.owner ? Without(reduction.members, rank_)
                                                     : std::vector<Rank>{reduction.owner},
                            context.stream, [&](const NcclOperation& operation, void* stream) {
                              const auto* from = static_cast<const char*>(contribution);
                              auto* to = static_cast<char*>(result);
                              return as_nccl_does ? SumAsNcclDoes(operation, reduction, dtype, from,
                                                                  to, elements, stream)
                                                  : SumInPlanOrder(operation, reduction, dtype,
                                                                   from, to, elements, stream);
                            })));
}

// Point to point to the owner, which sums: bits as on every other plane.
absl::Status NcclPlane::SumInPlanOrder(const NcclOperation& operation, const Reduction& reduction,
                                       DType dtype, const char* contribution, char* result,
                                       int64_t elements, void* stream) {
  const auto bytes_each = static_cast<int64_t>(SizeOf(dtype));
  const auto senders = static_cast<int64_t>(reduction.members.size()) - 1;
  // All members cut alike. Without senders nothing is received, and there is one piece.
  const int64_t piece = senders == 0 ? elements
                                     : static_cast<int64_t>(window_bytes_) /
                                           (senders * bytes_each) / kPieceElements * kPieceElements;
  for (int64_t first = 0; first < elements; first += piece) {
    const int64_t count = std::min(piece, elements - first);
    const auto bytes = static_cast<size_t>(count * bytes_each);
    const char* own = contribution + first * bytes_each;
    if (rank_ != reduction.owner) {
      absl::Status sent = link_->Group(operation, [&](NcclCommunicator& communicator) {
        return communicator.Send(own, bytes, reduction.owner, stream);
      });
      if (!sent.ok()) return sent;
      continue;
    }
    std::vector<const void*> contributions;
    const auto receive_all = [&](NcclCommunicator& communicator) {
      auto* place = static_cast<char*>(link_->window());
      absl::Status received;
      for (const Rank member : reduction.members) {
        contributions.push_back(member == rank_ ? own : place);
        if (member == rank_) continue;
        received.Update(communicator.Receive(place, bytes, member, stream));
        place += piece * bytes_each;
      }
      return received;
    };
    absl::Status summed;
    if (senders == 0) {
      contributions = {own};
    } else {
      summed = link_->Group(operation, receive_all);
    }
    // The next piece is received behind it, into the same memory.
    if (summed.ok()) {
      summed = link_->device().AverageInOrder(
          reduction.group_sizes, reduction.divisor, dtype, contributions, count,
          result + first * static_cast<int64_t>(SizeOf(ArithmeticOf(dtype))), stream);
    }
    if (!summed.ok()) return summed;
  }
  return absl::OkStatus();
}

// ncclReduce, then one division, which also widens 16-bit sums.
absl::Status NcclPlane::SumAsNcclDoes(const NcclOperation& operation, const Reduction& reduction,
                                      DType dtype, const char* contribution, char* result,
                                      int64_t elements, void* stream) {
  const auto bytes_each = static_cast<int64_t>(SizeOf(dtype));
  const int64_t piece =
      static_cast<int64_t>(window_bytes_) / bytes_each / kPieceElements * kPieceElements;
  for (int64_t first = 0; first < elements; first += piece) {
    const int64_t count = std::min(piece, elements - first);
    absl::Status summed = link_->Group(operation, [&](NcclCommunicator& communicator) {
      return communicator.Sum(contribution + first * bytes_each, link_->window(), count, dtype,
                              reduction.owner, stream);
    });
    if (summed.ok() && rank_ == reduction.owner) {
      summed = link_->device().AverageInOrder(
          {1}, reduction.divisor, dtype, {link_->window()}, count,
          result + first * static_cast<int64_t>(SizeOf(ArithmeticOf(dtype))), stream);
    }
    if (!summed.ok()) return summed;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Ticket>> NcclPlane::Publish(const StepTag& tag,
                                                           const ExecutionContext& context,
                                                           Rank owner,
                                                           absl::Span<const Rank> members,
                                                           void* data, size_t bytes) {
  if (IsHost(context)) return OfHost(host_->Publish(tag, context, owner, members, data, bytes));
  const absl::Status may_start = MayStart(CheckPublish(owner, members, all_), context);
  if (!may_start.ok()) return may_start;
  const bool takes_part = std::find(members.begin(), members.end(), rank_) != members.end();
  if (!takes_part || members.size() == 1 || bytes == 0) {
    return std::unique_ptr<Ticket>(std::make_unique<NoPart>(context.device));
  }
  std::vector<Rank> others = Without(members, rank_);
  // A broadcast is of all ranks; to some of them the owner sends.
  const auto enqueue = [&](NcclCommunicator& communicator, void* stream) {
    if (members.size() == all_.size()) return communicator.Broadcast(data, bytes, owner, stream);
    if (rank_ != owner) return communicator.Receive(data, bytes, owner, stream);
    absl::Status sent;
    for (const Rank member : others) sent.Update(communicator.Send(data, bytes, member, stream));
    return sent;
  };
  return std::unique_ptr<Ticket>(std::make_unique<NcclTicket>(
      link_,
      link_->Enqueue(NameOf("Publish", tag), rank_ == owner ? others : std::vector<Rank>{owner},
                     context.stream, [&](const NcclOperation& operation, void* stream) {
                       return link_->Group(operation, [&](NcclCommunicator& communicator) {
                         return enqueue(communicator, stream);
                       });
                     })));
}

absl::StatusOr<std::unique_ptr<Ticket>> NcclPlane::AllGather(const StepTag& tag,
                                                             const ExecutionContext& context,
                                                             const void* contribution,
                                                             void* gathered,
                                                             size_t bytes_per_rank) {
  if (IsHost(context)) {
    return OfHost(host_->AllGather(tag, context, contribution, gathered, bytes_per_rank));
  }
  const absl::Status may_start = MayStart(CheckAllGather(bytes_per_rank), context);
  if (!may_start.ok()) return may_start;
  if (bytes_per_rank == 0) {
    return std::unique_ptr<Ticket>(std::make_unique<NoPart>(context.device));
  }
  return std::unique_ptr<Ticket>(std::make_unique<NcclTicket>(
      link_, link_->Enqueue(NameOf("AllGather", tag), Without(all_, rank_), context.stream,
                            [&](const NcclOperation& operation, void* stream) {
                              return link_->Group(operation, [&](NcclCommunicator& communicator) {
                                return communicator.AllGather(contribution, gathered,
                                                              bytes_per_rank, stream);
                              });
                            })));
}

void NcclPlane::Abort(const absl::Status& reason) { link_->Break(reason); }

absl::Status NcclPlane::Close(absl::Time deadline) { return link_->Close(deadline); }

}  // namespace optshard
