#include "common/link/segment_label.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/link/protocol_version.h"

namespace optshard {
namespace {

constexpr char kMagic[8] = {'o', 'p', 't', 's', 'h', 'a', 'r', 'd'};

template <typename T>
absl::Status Differs(const std::string& what, absl::string_view field, const T& expected,
                     const T& actual) {
  return SegmentRefused(what, absl::StrCat("its ", field, " is ", actual, ", expected ", expected));
}

}  // namespace

absl::string_view NameOf(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kParameters:
      return "parameters";
    case SegmentKind::kGradients:
      return "gradients";
    case SegmentKind::kMailbox:
      return "mailbox";
    case SegmentKind::kDoorbell:
      return "doorbell";
    case SegmentKind::kSlots:
      return "slots";
    case SegmentKind::kLedger:
      return "ledger";
    case SegmentKind::kRankRecord:
      return "rank record";
    case SegmentKind::kAdmission:
      return "admission";
  }
  return "unknown";
}

StoredLabel Stored(const SegmentLabel& label, size_t bytes) {
  StoredLabel stored = {};
  std::memcpy(stored.magic, kMagic, sizeof(kMagic));
  stored.protocol_version = kLinkProtocolVersion;
  stored.kind = static_cast<uint32_t>(label.kind);
  stored.rank = label.rank;
  stored.generation = label.generation;
  stored.layout_digest = label.layout_digest;
  stored.data_bytes = bytes;
  return stored;
}

bool IsLabel(const StoredLabel& stored) {
  return std::memcmp(stored.magic, kMagic, sizeof(kMagic)) == 0;
}

absl::Status SegmentRefused(const std::string& what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("segment of ", what, " refused: ", why));
}

absl::Status CheckLabel(const StoredLabel& actual, const StoredLabel& expected,
                        const std::string& what) {
  if (!IsLabel(actual)) {
    return SegmentRefused(what, "there is no label of optshard in its last page");
  }
  if (actual.protocol_version != expected.protocol_version) {
    return Differs(what, "protocol version", expected.protocol_version, actual.protocol_version);
  }
  if (actual.kind != expected.kind) {
    const auto name = [](uint32_t kind) {
      return absl::StrCat(kind, " (", NameOf(static_cast<SegmentKind>(kind)), ")");
    };
    return Differs(what, "kind", name(expected.kind), name(actual.kind));
  }
  if (actual.rank != expected.rank) return Differs(what, "rank", expected.rank, actual.rank);
  if (actual.generation != expected.generation) {
    return Differs(what, "generation", expected.generation, actual.generation);
  }
  if (actual.layout_digest != expected.layout_digest) {
    const auto hex = [](uint64_t digest) {
      return absl::StrCat("0x", absl::Hex(digest, absl::kZeroPad16));
    };
    return Differs(what, "layout digest", hex(expected.layout_digest), hex(actual.layout_digest));
  }
  if (actual.data_bytes != expected.data_bytes) {
    return Differs(what, "number of bytes", expected.data_bytes, actual.data_bytes);
  }
  return absl::OkStatus();
}

}  // namespace optshard
