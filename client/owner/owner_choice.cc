#include "client/owner/owner_choice.h"

#include <unistd.h>

#include <climits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/owner/attached_owner.h"
#include "client/owner/embedded_owner.h"
#include "common/log.h"
#include "common/partition.h"

namespace optshard {
namespace {

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

AttachedOwner::Options AttachmentOf(const ShardedOptimizerOptions& options) {
  AttachedOwner::Options attachment;
  attachment.job = options.job;
  attachment.optimizer = options.optimizer;
  attachment.rank = options.rank;
  attachment.world_size = options.world_size;
  attachment.gradient_mode = options.gradient_mode;
  attachment.policy = options.policy;
  attachment.buckets = options.buckets;
  attachment.node = options.node;
  attachment.threads = options.threads;
  attachment.join_timeout = options.join_timeout;
  attachment.share_parameters = options.share_parameters;
  return attachment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnerLink>> StartOwner(
    const ShardedOptimizerOptions& given, const ParameterSpace& space, const std::string& rule,
    const std::vector<Hyperparameters>& hyperparameters) {
  ShardedOptimizerOptions options = given;
  if (options.node.empty()) options.node = HostName();
  if (!options.log_level.empty()) {
    if (absl::Status status = SetLogLevel(options.log_level); !status.ok()) return status;
  }
  if (options.share_parameters && options.policy == PartitionPolicy::kReplicated) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank,
                     " has share_parameters with the partition policy \"replicated\", with which "
                     "every rank would update the one copy; choose another policy, or let each "
                     "rank have its own parameters"));
  }
  if (options.attach == "embedded") {
    return StartEmbeddedOwner(options, space, rule, hyperparameters);
  }
  absl::string_view socket = options.attach;
  if (!absl::ConsumePrefix(&socket, "unix:") || socket.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("attach is \"", options.attach,
                     "\": expected \"embedded\", or \"unix:PATH\" with the socket of this node's "
                     "optshard-server"));
  }
  AttachedOwner::Options attachment = AttachmentOf(options);
  attachment.socket = std::string(socket);
  attachment.space = space;
  attachment.rule = rule;
  attachment.hyperparameters = hyperparameters;
  absl::StatusOr<std::unique_ptr<AttachedOwner>> attached = AttachedOwner::Attach(attachment);
  if (!attached.ok()) return attached.status();
  return std::unique_ptr<OwnerLink>(*std::move(attached));
}

}  // namespace optshard
