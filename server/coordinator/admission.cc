#include "server/coordinator/admission.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "common/errors.h"
#include "common/incarnation.h"
#include "common/optimizer_spec.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

absl::Status CheckLengths(const JoinRequest& request) {
  absl::Status valid = CheckLength("the job's name", request.job);
  valid.Update(CheckLength("the optimizer's name", request.optimizer));
  valid.Update(CheckLength("the request id", request.request_id));
  valid.Update(CheckLength("the node's name", request.node));
  valid.Update(CheckLength("the owner's address", request.owner_address));
  return valid;
}

}  // namespace

absl::Status CheckJoinRequest(const JoinRequest& request, absl::string_view job, int world_size) {
  const absl::Status lengths = CheckLengths(request);
  if (!lengths.ok()) {
    return errors::WithContext(
        lengths, absl::StrFormat("rank %d (pid %d) wants to join", request.rank, request.pid));
  }
  const std::string who = absl::StrFormat(
      "rank %d (pid %d) wants to join optimizer \"%s\" of job \"%s\": ", request.rank, request.pid,
      request.optimizer, request.job);
  if (request.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, "it speaks protocol version ", request.protocol_version, ", this coordinator version ",
        kProtocolVersion, "; run the same version of optshard everywhere"));
  }
  if (request.job != job) {
    return absl::InvalidArgumentError(absl::StrCat(who, "this coordinator serves job \"", job,
                                                   "\"; check the job's name and the address"));
  }
  if (request.spec.world_size != world_size) {
    return absl::InvalidArgumentError(absl::StrCat(who, "it says the world size is ",
                                                   request.spec.world_size, ", the coordinator ",
                                                   world_size, "; start all with the same one"));
  }
  if (request.rank < 0 || request.rank >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat(who, "the rank is not in 0..", world_size - 1,
                                                   " (world size ", world_size, ")"));
  }
  if (request.optimizer.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(who, "the optimizer's name is empty"));
  }
  if (request.spec_digest.has_value()) return absl::OkStatus();
  return errors::WithContext(request.spec.Validate(), who.substr(0, who.size() - 2));
}

absl::Status CheckAgreement(const JoinRequest& first, const JoinRequest& other) {
  const absl::optional<std::string> difference = FirstDifference(
      first.spec, absl::StrCat("rank ", first.rank), other.spec, absl::StrCat("rank ", other.rank));
  if (!difference.has_value()) return absl::OkStatus();
  return errors::WithContext(
      errors::RanksDisagree({other.rank}, *difference),
      absl::StrCat("optimizer \"", first.optimizer, "\" must be constructed alike on all ranks"));
}

absl::Status CheckOpen(const JoinRequest& request, GroupState state, const absl::Status& failure) {
  const std::string group =
      absl::StrCat("optimizer \"", request.optimizer, "\" of job \"", request.job, "\"");
  if (state == GroupState::kFailed) {
    return absl::FailedPreconditionError(
        absl::StrCat(group, " has failed, rank ", request.rank,
                     " cannot join it any more: ", failure.message(), "; start the job again"));
  }
  if (state == GroupState::kFinished) {
    return absl::FailedPreconditionError(absl::StrCat(
        group, " has finished: all its ranks have left; rank ", request.rank,
        " cannot join it any more; start another job or give the optimizer another name"));
  }
  return absl::OkStatus();
}

absl::Status AlreadyTaken(const JoinRequest& request, const Member& holder, absl::Time now) {
  return absl::AlreadyExistsError(absl::StrFormat(
      "rank %d of optimizer \"%s\" in job \"%s\" is taken by pid %d%s%s (incarnation %s, %s, heard "
      "from %s ago); pid %d cannot have it too: give each process a rank of its own",
      request.rank, request.optimizer, request.job, holder.request.pid,
      holder.request.node.empty() ? "" : absl::StrCat(" on ", holder.request.node),
      holder.request.owner_address.empty() ? ""
                                           : absl::StrCat(" at ", holder.request.owner_address),
      IncarnationText(holder.incarnation), NameOf(holder.state),
      absl::FormatDuration(absl::Trunc(now - holder.pulse.last_heard, absl::Milliseconds(1))),
      request.pid));
}

}  // namespace optshard
