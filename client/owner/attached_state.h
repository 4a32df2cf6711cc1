// A rank's state at its shard server, as the rank's trainer reaches it.
#ifndef OPTSHARD_CLIENT_OWNER_ATTACHED_STATE_H_
#define OPTSHARD_CLIENT_OWNER_ATTACHED_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/owner/attached_owner.h"
#include "common/attach/doorbell.h"
#include "common/optimizer_spec.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/state_access.h"
#include "server/update/group_update.h"

namespace optshard {

// Through the doorbell.
class AttachedOwner::State final : public StateAccess {
 public:
  State(AttachedOwner* owner, std::vector<GroupUpdate> groups)
      : owner_(*owner), groups_(std::move(groups)) {}

  size_t groups() const { return groups_.size(); }

  void SetTimeout(absl::Duration timeout) { timeout_ = timeout; }

  std::vector<ParameterSlot> Slots(int parameter) const override {
    const OptimizerSpec& spec = owner_.spec();
    return SlotsOfParameter(spec.space.parameter(parameter),
                            groups_[spec.space.group_of(parameter)], spec.state);
  }

  absl::Status Read(int parameter, int slot, int64_t offset_elements,
                    absl::Span<double> out) override {
    const auto elements = static_cast<int64_t>(out.size());
    absl::Status read =
        Ask(DoorbellRequest::Kind::kReadState, {parameter, slot, offset_elements, elements}, {});
    if (!read.ok()) return read;
    const absl::Span<const double> window = owner_.line()->doorbell().state_window();
    std::copy_n(window.begin(), out.size(), out.begin());
    return absl::OkStatus();
  }

  absl::Status Write(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values) override {
    const auto elements = static_cast<int64_t>(values.size());
    return Ask(DoorbellRequest::Kind::kWriteState, {parameter, slot, offset_elements, elements},
               values);
  }

  absl::Status BeginStaging(Replacing what) override {
    return Ask(what == Replacing::kAll ? DoorbellRequest::Kind::kStageAll
                                       : DoorbellRequest::Kind::kStageState,
               StateRange(), {});
  }

  absl::Status Stage(int parameter, int slot, int64_t offset_elements,
                     absl::Span<const double> values) override {
    const auto elements = static_cast<int64_t>(values.size());
    return Ask(DoorbellRequest::Kind::kWriteStaged, {parameter, slot, offset_elements, elements},
               values);
  }

  absl::StatusOr<absl::Span<char>> StagedMemory(int, int, int64_t, int64_t) override {
    return absl::Span<char>();
  }

  absl::Status StageBytes(int parameter, int slot, int64_t offset_elements,
                          absl::Span<const char> values) override {
    const auto bytes = static_cast<int64_t>(values.size());
    owner_.request_.bytes = values;
    absl::Status staged = Ask(DoorbellRequest::Kind::kWriteStagedBytes,
                              {parameter, slot, offset_elements, bytes}, {});
    owner_.request_.bytes = {};
    return staged;
  }

  absl::Status DropStaged() override {
    return Ask(DoorbellRequest::Kind::kDropStaged, StateRange(), {});
  }

 private:
  absl::Status Ask(DoorbellRequest::Kind kind, const StateRange& range,
                   absl::Span<const double> values) {
    DoorbellRequest& request = owner_.request_;
    request.kind = kind;
    request.state = range;
    request.values = values;
    const absl::StatusOr<DoorbellReply> reply = owner_.Ask(timeout_);
    request.values = {};
    return reply.ok() ? reply->status : reply.status();
  }

  AttachedOwner& owner_;
  const std::vector<GroupUpdate> groups_;
  absl::Duration timeout_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_ATTACHED_STATE_H_
