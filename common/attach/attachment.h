// The messages between a trainer and its node's shard server when the trainer attaches, as plain
// values. proto/optshard/v1/attach.proto explains each field and the order of the messages.
#ifndef OPTSHARD_COMMON_ATTACH_ATTACHMENT_H_
#define OPTSHARD_COMMON_ATTACH_ATTACHMENT_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/blob_size.h"
#include "common/dataplane/plane_notice.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"

namespace optshard {

constexpr uint32_t kAttachProtocolVersion = 8;

// The descriptors that come with an AttachReply, and, but for the last, with an AddGroupsReply, in
// this order.
enum AttachDescriptor : size_t {
  kParametersDescriptor = 0,
  kGradientsDescriptor = 1,
  kDoorbellDescriptor = 2,
  kGroupsDescriptors = 3,
  kWriteCountsDescriptor = 3,  // common/attach/write_counts.h
  kAttachDescriptors = 4,
};

struct AttachRequest {
  uint32_t protocol_version = kAttachProtocolVersion;
  std::string job;
  std::string optimizer;
  Rank rank = -1;
  OptimizerSpec spec;
  uint64_t layout_digest = 0;
  std::string node;
  int threads = 0;  // 0: the rank's share of the CPUs
  absl::Duration join_timeout = absl::Seconds(60);
  std::string device;  // DeviceApi::HardwareId; empty: the parameters are in the host's memory
  bool state_on_host = false;  // with a device
};

struct AttachReply {
  Incarnation incarnation = 0;
  bool resumes = false;
  StepNumber finished_step = 0;
  CallNumber last_call = 0;
  std::string blob;
  StepNumber blob_step = 0;
  Generation generation = 0;
  std::string owner_address;
  std::string coordinator;  // HOST:PORT, from this host
  int64_t state_bytes = 0;
  Rank parameters_rank = -1;
  pid_t keeper = 0;  // holds the rank's memory beyond the end of the server; 0: nobody
  PlaneNotice plane;
};

struct AddGroupsRequest {
  OptimizerSpec spec;
  uint64_t layout_digest = 0;
  absl::Status prepared;
  absl::Duration timeout = absl::Seconds(60);
  bool had = false;
};

struct AddGroupsReply {
  absl::Status status;
  bool broken = false;
  bool resumes = false;
  int64_t state_bytes = 0;
};

// One of the two.
struct ServerMessage {
  absl::optional<absl::Status> goodbye;  // why; it is never OK
  absl::optional<AddGroupsReply> groups_added;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_ATTACH_ATTACHMENT_H_
