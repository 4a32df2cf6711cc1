#include "client/control/optimizer_client_rpc.h"

#include <grpcpp/grpcpp.h>

#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/hyperparameters.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/membership/membership_rpc.h"
#include "common/partition.h"
#include "common/plan.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/state/parameter_slots.h"
#include "server/update/group_update.h"
#include "server/update/step_hyperparameters.h"

namespace optshard {
namespace {

using Slot = OptimizerClient::Slot;

std::vector<Slot> SlotsOf(const OptimizerSpec& spec, const std::vector<GroupUpdate>& groups) {
  std::vector<Slot> slots;
  for (int p = 0; p < spec.space.parameter_count(); ++p) {
    const ParameterSpec& parameter = spec.space.parameter(p);
    const GroupUpdate& group = groups[spec.space.group_of(p)];
    for (const ParameterSlot& kept : SlotsOfParameter(parameter, group, spec.state)) {
      Slot slot;
      slot.parameter = p;
      slot.name = kept.name;
      slot.shape = kept.shape.value_or(parameter.shape);
      slot.elements = ElementsOf(slot.shape);
      slot.format = IsCoded(kept.format) ? StateFormat::kFloat32 : kept.format;
      slot.is_number = kept.is_scalar();
      if (slot.is_number) slot.format = StateFormat::kFloat64;
      slots.push_back(std::move(slot));
    }
  }
  return slots;
}

// The caller's memory.
class Places final : public StateDestination {
 public:
  Places(const ParameterSpace& space, const std::vector<Slot>& slots, absl::Span<char* const> to,
         absl::Span<char* const> parameters)
      : space_(space), slots_(slots), to_(to), parameters_(parameters) {
    for (size_t i = 0; i < slots.size(); ++i) index_[{slots[i].parameter, slots[i].name}] = i;
  }

  absl::Status Take(const Piece& piece, absl::Span<const Bytes> values) override {
    if (piece.slot == kParameterPart) return TakeParameter(piece, values);
    const auto found = index_.find({piece.parameter, std::string(piece.slot)});
    if (found == index_.end() || slots_[found->second].format != piece.format ||
        piece.elements > slots_[found->second].elements ||
        piece.offset_elements > slots_[found->second].elements - piece.elements) {
      return Unknown(piece);
    }
    char* to = to_[found->second] + piece.offset_elements * ElementBytes(piece.format);
    // Every owner of a part gives the numbers of the whole.
    absl::MutexLockMaybe lock(slots_[found->second].is_number ? &mutex_ : nullptr);
    Copy(values, to);
    return absl::OkStatus();
  }

 private:
  absl::Status TakeParameter(const Piece& piece, absl::Span<const Bytes> values) {
    if (static_cast<size_t>(piece.parameter) >= parameters_.size()) return Unknown(piece);
    const ParameterSpec& parameter = space_.parameter(piece.parameter);
    if (piece.format != StateFormatOf(parameter.dtype) || piece.elements > parameter.elements() ||
        piece.offset_elements > parameter.elements() - piece.elements) {
      return Unknown(piece);
    }
    Copy(values, parameters_[piece.parameter] + piece.offset_elements * ElementBytes(piece.format));
    return absl::OkStatus();
  }

  static void Copy(absl::Span<const Bytes> values, char* to) {
    for (const Bytes& part : values) {
      std::memcpy(to, part.data, part.size);
      to += part.size;
    }
  }

  static absl::Status Unknown(const Piece& piece) {
    return absl::InternalError(absl::StrFormat(
        "%d elements from %d on of slot \"%s\" of parameter %d, format %s, are not what this "
        "optimizer keeps",
        piece.elements, piece.offset_elements, piece.slot, piece.parameter, NameOf(piece.format)));
  }

  const ParameterSpace& space_;
  const std::vector<Slot>& slots_;
  const absl::Span<char* const> to_;
  const absl::Span<char* const> parameters_;
  std::map<std::pair<int32_t, std::string>, size_t> index_;
  absl::Mutex mutex_;
};

class RpcOptimizerClient final : public OptimizerClient {
 public:
  explicit RpcOptimizerClient(const Options& options)
      : options_(options), stub_(v1::Coordinator::NewStub(MakeChannel(options.coordinator))) {}

  absl::Status Start() {
    absl::StatusOr<OptimizerPlan> known = Ask();
    if (!known.ok()) return known.status();
    absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(known->spec);
    if (!groups.ok()) {
      return absl::UnimplementedError(
          absl::StrCat("its slots are not known here: ", groups.status().message()));
    }
    spec_ = std::move(known->spec);
    groups_ = *std::move(groups);
    slots_ = SlotsOf(spec_, groups_);
    absl::StatusOr<std::unique_ptr<CoordinatorClient>> coordinator =
        MakeCoordinatorClient(options_.coordinator);
    if (!coordinator.ok()) return coordinator.status();
    coordinator_ = *std::move(coordinator);
    return absl::OkStatus();
  }

  const OptimizerSpec& spec() const override { return spec_; }
  const std::vector<Slot>& slots() const override { return slots_; }

  absl::StatusOr<PulledStep> ReadState(absl::Span<char* const> to,
                                       const ReadOptions& options) const override {
    if (to.size() != slots_.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%d places were given for %d slots", to.size(), slots_.size()));
    }
    const bool wants_parameters = !options.parameters.empty();
    const auto parameters = static_cast<size_t>(spec_.space.parameter_count());
    if (wants_parameters && options.parameters.size() != parameters) {
      return absl::InvalidArgumentError(absl::StrFormat("%d places were given for %d parameters",
                                                        options.parameters.size(), parameters));
    }
    const absl::StatusOr<OptimizerPlan> known = Ask();
    if (!known.ok()) return known.status();
    if (known->spec.Digest() != spec_.Digest()) {
      return absl::FailedPreconditionError(
          absl::StrCat("optimizer \"", options_.optimizer,
                       "\" is another one than when this client was connected; connect anew"));
    }
    absl::StatusOr<std::vector<std::string>> addresses =
        coordinator_->GetOwners(options_.optimizer, Clock::Monotonic().Now() + options_.timeout);
    if (!addresses.ok()) return addresses.status();
    std::vector<StateOwnerAddress> owners;
    for (std::string& address : *addresses) {
      owners.push_back({static_cast<Rank>(owners.size()), std::move(address)});
    }
    // Each of them has all.
    if (spec_.policy == PartitionPolicy::kReplicated) owners.resize(1);
    StatePullOptions pull;
    pull.optimizer = options_.optimizer;
    pull.keep_copies = options.keep_copies;
    pull.parameters = wants_parameters;
    pull.hyperparameters = true;
    pull.timeout = options.timeout;
    pull.progress = options.progress;
    pull.cancellation = options.cancellation;
    Places places(spec_.space, slots_, to, options.parameters);
    absl::StatusOr<PulledStep> pulled = PullState(owners, places, pull);
    if (!pulled.ok()) return pulled;
    const int64_t expected = BytesOf(known->ready->plan, wants_parameters);
    const bool same = pulled->generation == known->ready->plan.generation;
    if (same && pulled->bytes == expected) {
      auto whole = WithDefaults(pulled->hyperparameters);
      if (!whole.ok()) return whole.status();
      pulled->hyperparameters = *std::move(whole);
      return pulled;
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "the owners gave %d bytes of generation %d, expected %d bytes of generation %d; the ranks "
        "joined anew meanwhile: read again",
        pulled->bytes, pulled->generation, expected, known->ready->plan.generation));
  }

 private:
  absl::StatusOr<OptimizerPlan> Ask() const {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(options_.timeout));
    context.set_wait_for_ready(true);
    v1::GetPlanRequest request;
    request.set_optimizer(options_.optimizer);
    v1::GetPlanResponse response;
    const absl::Status status = FromGrpc(stub_->GetPlan(&context, request, &response));
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      return absl::UnavailableError(
          absl::StrCat("no coordinator answers at ", options_.coordinator, ": ", status.message()));
    }
    if (!status.ok()) return status;
    return FromProto(response);
  }

  // What an owner gives, by group, as a step would take it.
  absl::StatusOr<std::vector<Hyperparameters>> WithDefaults(
      const std::vector<Hyperparameters>& given) const {
    if (given.size() != groups_.size()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the owner of rank 0 sends hyperparameters of %d param groups, expected %d: it runs "
          "another version of optshard",
          given.size(), groups_.size()));
    }
    auto whole = ValidateForStep(groups_, given);
    if (whole.ok()) return whole;
    return absl::InternalError(absl::StrCat(
        "the owner of rank 0 sends hyperparameters that no step has: ", whole.status().message()));
  }

  // Of what the owners send: each one that has a part of a parameter sends its numbers.
  int64_t BytesOf(const Plan& plan, bool with_parameters) const {
    std::vector<int64_t> owners(spec_.space.parameter_count(), 0);
    for (size_t rank = 0; rank < plan.partition.slices.size(); ++rank) {
      if (spec_.policy == PartitionPolicy::kReplicated && rank > 0) break;
      int last = -1;
      for (const Slice& slice : plan.partition.slices[rank]) {
        if (slice.parameter != last) ++owners[slice.parameter];
        last = slice.parameter;
      }
    }
    int64_t bytes = 0;
    for (int p = 0; with_parameters && p < spec_.space.parameter_count(); ++p) {
      const ParameterSpec& parameter = spec_.space.parameter(p);
      bytes += parameter.elements() * static_cast<int64_t>(SizeOf(parameter.dtype));
    }
    for (const Slot& slot : slots_) {
      bytes += slot.bytes() * (slot.is_number ? owners[slot.parameter] : 1);
    }
    return bytes;
  }

  const Options options_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  OptimizerSpec spec_;
  std::vector<GroupUpdate> groups_;
  std::vector<Slot> slots_;
  std::unique_ptr<CoordinatorClient> coordinator_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OptimizerClient>> OptimizerClient::Connect(const Options& options) {
  auto client = std::make_unique<RpcOptimizerClient>(options);
  absl::Status started = client->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<OptimizerClient>(std::move(client));
}

}  // namespace optshard
