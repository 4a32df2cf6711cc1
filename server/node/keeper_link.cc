#include "server/node/keeper_link.h"

#include <poll.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/poll_until.h"

namespace optshard {
namespace {

absl::Status Gone() {
  return absl::UnavailableError(
      "the keeper of this shard server has ended: the server goes on, but what it holds ends with "
      "it; drain it and start it again to have a keeper");
}

}  // namespace

KeeperLink::KeeperLink(Options options)
    : line_(std::move(options.line)),
      life_(options.life),
      keeper_(options.keeper),
      answer_timeout_(options.answer_timeout),
      inherited_(std::move(options.inherited)) {}

absl::Status KeeperLink::Keep(absl::string_view name, absl::Span<const int> descriptors) {
  absl::Status status = CheckKeptDescriptors(name, descriptors.size());
  if (!status.ok()) return status;
  return Ask(KeeperRequest::Kind::kKeep, name, descriptors);
}

absl::Status KeeperLink::Forget(absl::string_view name) {
  return Ask(KeeperRequest::Kind::kForget, name, {});
}

absl::Status KeeperLink::Ask(KeeperRequest::Kind kind, absl::string_view name,
                             absl::Span<const int> descriptors) {
  absl::Status status = CheckKeptName(name);
  if (!status.ok()) return status;
  KeeperRequest request;
  request.kind = kind;
  request.name = std::string(name);
  const absl::Time deadline = Clock::Monotonic().Now() + answer_timeout_;
  {
    absl::MutexLock lock(&mutex_);
    request.number = ++asked_;
    status = SendPacket(line_.get(), Encode(request), descriptors, deadline);
    if (status.ok()) status = WaitForAnswer(request.number, deadline);
  }
  if (status.ok()) return status;
  if (absl::IsUnavailable(status)) status = Gone();
  return errors::WithContext(
      status,
      absl::StrCat("the keeper was asked to ",
                   kind == KeeperRequest::Kind::kKeep ? "keep" : "forget", " '", name, "'"));
}

absl::Status KeeperLink::WaitForAnswer(uint64_t number, absl::Time deadline) const {
  while (true) {
    const absl::StatusOr<Packet> packet = ReceivePacket(line_.get(), deadline);
    if (!packet.ok()) return packet.status();
    absl::StatusOr<KeeperAnswer> answer = DecodeAnswer(packet->bytes);
    if (!answer.ok()) return answer.status();
    // Else it is of a request that was not waited for to its end.
    if (answer->number == number) return answer->status;
  }
}

std::vector<KeptUnit> KeeperLink::TakeInherited() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(inherited_, {});
}

bool KeeperLink::KeeperGone() const { return PollUntil(line_.get(), 0, absl::InfinitePast()); }

}  // namespace optshard
