#include "server/shard/engine/commit_vote.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

constexpr uint32_t kMagic = 0x6f707476;  // "optv"
constexpr size_t kReasonBytes = 240;

// Host byte order: the ranks of a job are machines of one kind (docs/assumptions.md).
struct Header {
  uint32_t magic = kMagic;
  int32_t rank = 0;
  uint64_t incarnation = 0;
  uint64_t generation = 0;
  uint64_t step = 0;
  int32_t code = 0;
  uint32_t reason_bytes = 0;
  uint32_t hyperparameter_text_bytes = 0;
  CommitCall call = CommitCall::kStep;
  uint64_t subject = 0;
  SnapshotIds snapshots{};
  char reason[kReasonBytes] = {};
};
static_assert(sizeof(Header) == 56 + sizeof(SnapshotIds) + kReasonBytes, "no padding");

size_t BitmapBytes(int parameters) { return (static_cast<size_t>(parameters) + 7) / 8; }

// Returns where the next one goes.
char* EncodeBits(const std::vector<bool>& bits, int parameters, char* to) {
  std::memset(to, 0, BitmapBytes(parameters));
  for (size_t p = 0; p < bits.size(); ++p) {
    if (bits[p]) to[p / 8] = static_cast<char>(to[p / 8] | (1 << (p % 8)));
  }
  return to + BitmapBytes(parameters);
}

// Returns where the next one begins.
const char* DecodeBits(const char* from, int parameters, std::vector<bool>* bits) {
  bits->resize(parameters);
  for (int p = 0; p < parameters; ++p) (*bits)[p] = ((from[p / 8] >> (p % 8)) & 1) != 0;
  return from + BitmapBytes(parameters);
}

}  // namespace

CallEffect EffectOf(CommitCall call) {
  switch (call) {
    case CommitCall::kVerify:
    case CommitCall::kConsolidate:
    case CommitCall::kLoad:
      return CallEffect::kReads;
    case CommitCall::kStep:
      return CallEffect::kSteps;
    case CommitCall::kSynchronise:
    case CommitCall::kFinishLoading:
    case CommitCall::kReplaceState:
      break;
  }
  return CallEffect::kChanges;
}

size_t CommitVoteBytes(int groups, int parameters) {
  return sizeof(Header) + static_cast<size_t>(groups) * sizeof(uint64_t) +
         2 * BitmapBytes(parameters);
}

void EncodeVote(const CommitVote& vote, absl::Span<char> to) {
  Header header;
  header.rank = vote.rank;
  header.incarnation = vote.incarnation;
  header.generation = vote.generation;
  header.step = vote.step;
  header.call = vote.call;
  header.subject = vote.subject;
  header.snapshots = vote.snapshots;
  header.code = static_cast<int32_t>(vote.prepared.code());
  header.reason_bytes = static_cast<uint32_t>(
      absl::string_view(vote.prepared.message()).copy(header.reason, kReasonBytes));
  header.hyperparameter_text_bytes = vote.hyperparameter_text_bytes;

  char* at = to.data();
  std::memcpy(at, &header, sizeof(header));
  at += sizeof(header);
  const size_t digest_bytes = vote.hyperparameter_digests.size() * sizeof(uint64_t);
  std::copy_n(reinterpret_cast<const char*>(vote.hyperparameter_digests.data()), digest_bytes, at);
  at += digest_bytes;
  const auto parameters = static_cast<int>(vote.has_gradient.size());
  at = EncodeBits(vote.has_gradient, parameters, at);
  EncodeBits(vote.sparse, parameters, at);
}

absl::StatusOr<CommitVote> DecodeVote(absl::Span<const char> from, int groups, int parameters) {
  Header header;
  if (from.size() != CommitVoteBytes(groups, parameters)) {
    return absl::InternalError(absl::StrFormat("a commit vote has %d bytes, expected %d",
                                               from.size(), CommitVoteBytes(groups, parameters)));
  }
  std::memcpy(&header, from.data(), sizeof(header));
  if (header.magic != kMagic || header.reason_bytes > kReasonBytes) {
    return absl::InternalError(
        absl::StrFormat("a commit vote starts with 0x%08x, expected 0x%08x: the data plane mixed "
                        "up its messages",
                        header.magic, kMagic));
  }
  CommitVote vote;
  vote.rank = header.rank;
  vote.incarnation = header.incarnation;
  vote.generation = header.generation;
  vote.step = header.step;
  vote.call = header.call;
  vote.subject = header.subject;
  vote.snapshots = header.snapshots;
  if (header.code != 0) {
    vote.prepared = absl::Status(static_cast<absl::StatusCode>(header.code),
                                 absl::string_view(header.reason, header.reason_bytes));
  }
  vote.hyperparameter_text_bytes = header.hyperparameter_text_bytes;
  const char* at = from.data() + sizeof(header);
  vote.hyperparameter_digests.resize(groups);
  std::copy_n(at, groups * sizeof(uint64_t),
              reinterpret_cast<char*>(vote.hyperparameter_digests.data()));
  at += groups * sizeof(uint64_t);
  at = DecodeBits(at, parameters, &vote.has_gradient);
  DecodeBits(at, parameters, &vote.sparse);
  return vote;
}

}  // namespace optshard
