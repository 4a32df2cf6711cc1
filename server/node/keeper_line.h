// The messages between a shard server and its keeper, over a socketpair of packets
// (SOCK_SEQPACKET). A packet arrives whole with its descriptors or not at all. So a server that
// dies in the middle of a request has not made it, and a packet that loses descriptors does not
// affect the next one. Both ends are one program, forked, so structs travel as they are in memory.
#ifndef OPTSHARD_SERVER_NODE_KEEPER_LINE_H_
#define OPTSHARD_SERVER_NODE_KEEPER_LINE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/link/unique_fd.h"

namespace optshard {

// INVALID_ARGUMENT if a unit may not have this name, or this many descriptors.
absl::Status CheckKeptName(absl::string_view name);
absl::Status CheckKeptDescriptors(absl::string_view name, size_t descriptors);

struct KeeperRequest {
  enum class Kind : uint32_t { kKeep = 1, kForget = 2 };

  Kind kind = Kind::kKeep;
  uint64_t number = 0;  // repeated in the answer, so that a late answer is recognized
  std::string name;
};

struct KeeperAnswer {
  uint64_t number = 0;
  absl::Status status;
};

std::string Encode(const KeeperRequest& request);
std::string Encode(const KeeperAnswer& answer);
// INVALID_ARGUMENT if the packet is not a request or an answer.
absl::StatusOr<KeeperRequest> DecodeRequest(absl::string_view packet);
absl::StatusOr<KeeperAnswer> DecodeAnswer(absl::string_view packet);

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> descriptors;
  bool descriptors_lost = false;  // this process had no room for all of them
};

// The socket is non-blocking. Deadlines are in the time of Clock::Monotonic(); each call tries at
// least once. Both return UNAVAILABLE if the other end is closed, or DEADLINE_EXCEEDED. SendPacket
// also returns RESOURCE_EXHAUSTED if too many descriptors are under way; nothing was sent then.
absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> descriptors,
                        absl::Time deadline);
// An empty packet is taken for a closed end.
absl::StatusOr<Packet> ReceivePacket(int socket, absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_KEEPER_LINE_H_
