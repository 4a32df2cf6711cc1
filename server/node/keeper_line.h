// What a shard server and its keeper say to each other, over a socketpair of packets
// (SOCK_SEQPACKET): a packet arrives whole with its descriptors or not at all, so a server that
// dies in the middle of a request has not made it, and a packet whose descriptors got lost spoils
// no other. Both ends are one program, forked: the layout is the machine's own.
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

// INVALID_ARGUMENT where no unit may have this name, or so many descriptors.
absl::Status CheckKeptName(absl::string_view name);
absl::Status CheckKeptDescriptors(absl::string_view name, size_t descriptors);

struct KeeperRequest {
  enum class Kind : uint32_t { kKeep = 1, kForget = 2 };

  Kind kind = Kind::kKeep;
  uint64_t number = 0;  // the answer's, too: one that comes late is told apart
  std::string name;
};

struct KeeperAnswer {
  uint64_t number = 0;
  absl::Status status;
};

std::string Encode(const KeeperRequest& request);
std::string Encode(const KeeperAnswer& answer);
// INVALID_ARGUMENT where it is none.
absl::StatusOr<KeeperRequest> DecodeRequest(absl::string_view packet);
absl::StatusOr<KeeperAnswer> DecodeAnswer(absl::string_view packet);

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> descriptors;
  bool descriptors_lost = false;  // this process could not open them all
};

// The socket does not block; deadlines are in the time of Clock::Monotonic(), and each call looks
// once where they have passed. Both: UNAVAILABLE where the other end is closed, DEADLINE_EXCEEDED.
// Send also: RESOURCE_EXHAUSTED where too many descriptors are under way: nothing was sent.
absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> descriptors,
                        absl::Time deadline);
// An empty packet is taken for a closed end.
absl::StatusOr<Packet> ReceivePacket(int socket, absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_KEEPER_LINE_H_
