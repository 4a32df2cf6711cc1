#include "client/owner/owner_choice.h"

#include <unistd.h>

#include <climits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/owner/attached_owner.h"
#include "client/owner/client_seams.h"
#include "client/owner/embedded_owner.h"
#include "client/owner/opened_device.h"
#include "common/errors.h"
#include "common/log.h"

namespace optshard {
namespace {

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

AttachedOwner::Options AttachmentOf(const ShardedOptimizerOptions& options,
                                    const OptimizerSpec& spec) {
  AttachedOwner::Options attachment;
  attachment.job = options.job;
  attachment.optimizer = options.optimizer;
  attachment.rank = options.rank;
  attachment.spec = spec;
  attachment.node = options.node;
  attachment.threads = options.threads;
  attachment.copy_parameters_at_once = options.copy_parameters_at_once;
  attachment.join_timeout = options.join_timeout;
  return attachment;
}

absl::Status OpenDevice(const TrainerDevice& device, const ShardedOptimizerOptions& options,
                        AttachedOwner::Options* attachment) {
  if (device.is_cpu()) return absl::OkStatus();
  const absl::StatusOr<OwnerDevice> opened = OpenDeviceOf(device, options.rank);
  if (!opened.ok()) return opened.status();
  absl::StatusOr<std::string> hardware_id = opened->device->HardwareId();
  if (!hardware_id.ok()) return hardware_id.status();
  attachment->device = opened->device;
  attachment->hardware_id = *std::move(hardware_id);
  attachment->current_stream = device.current_stream;
  attachment->state_on_host = options.state_device == "cpu";
  return absl::OkStatus();
}

// A server runs no code of its trainers, and keeps no state that it cannot lay out.
absl::Status CheckServerHasRules(const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                                 const ShardedOptimizerOptions& options) {
  for (size_t g = 0; g < trainer_updates.size(); ++g) {
    if (trainer_updates[g] == nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank, ": param group ", g, " is stepped by the optimizer class \"",
        trainer_updates[g]->rule().spec().name,
        "\", which is code of this process, and attach is \"", options.attach,
        "\": a shard server has only the rules of docs/rules.md; set attach to \"embedded\", or "
        "give the group one of those rules"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OwnerLink>> Linked(
    absl::StatusOr<std::unique_ptr<OwnerLink>> owner) {
  const ClientSeams* const seams = ScopedClientSeams::Current();
  if (!owner.ok() || seams == nullptr || seams->link == nullptr) return owner;
  return seams->link(*std::move(owner));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnerLink>> StartOwner(
    const ShardedOptimizerOptions& given, const OptimizerSpec& spec,
    const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates, bool replaces,
    const TrainerDevice& device) {
  ShardedOptimizerOptions options = given;
  if (options.node.empty()) options.node = HostName();
  if (!options.log_level.empty()) {
    if (absl::Status status = SetLogLevel(options.log_level); !status.ok()) return status;
  }
  absl::Status valid = spec.Validate();
  if (!valid.ok()) return errors::WithContext(valid, absl::StrCat("rank ", options.rank));
  if (!options.state_device.empty() && options.state_device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, ": state_device is \"", options.state_device,
                     "\": expected \"cpu\", or \"\" for the device that the parameters are on"));
  }
  if (options.attach == "embedded") {
    return Linked(StartEmbeddedOwner(options, spec, trainer_updates, replaces, device));
  }
  absl::string_view socket = options.attach;
  if (!absl::ConsumePrefix(&socket, "unix:") || socket.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("attach is \"", options.attach,
                     "\": expected \"embedded\", or \"unix:PATH\" with the socket of this node's "
                     "optshard-server"));
  }
  absl::Status rules = CheckServerHasRules(trainer_updates, options);
  if (!rules.ok()) return rules;
  AttachedOwner::Options attachment = AttachmentOf(options, spec);
  attachment.socket = std::string(socket);
  absl::Status opened = OpenDevice(device, options, &attachment);
  if (!opened.ok()) return opened;
  absl::StatusOr<std::unique_ptr<AttachedOwner>> attached = AttachedOwner::Attach(attachment);
  if (!attached.ok()) return attached.status();
  return Linked(std::unique_ptr<OwnerLink>(*std::move(attached)));
}

}  // namespace optshard
