#include "server/shard/engine/replica_comparison.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/digest.h"
#include "common/dtype.h"
#include "common/errors.h"

namespace optshard {
namespace {

int RanksOf(absl::Span<const uint64_t> gathered) {
  return static_cast<int>(gathered.size()) / kComparedParts;
}

uint64_t DigestOf(absl::Span<const uint64_t> gathered, Rank rank, int part) {
  return gathered[static_cast<size_t>(rank) * kComparedParts + part];
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> DigestParameters(const ParameterSpace& space,
                                                       absl::Span<const ReplicaTensor> replica,
                                                       HostTransfer& transfer,
                                                       absl::Time deadline) {
  std::vector<uint64_t> digests;
  for (int p = 0; p < space.parameter_count(); ++p) {
    const ParameterSpec& spec = space.parameter(p);
    const int64_t bytes = spec.elements() * static_cast<int64_t>(SizeOf(spec.dtype));
    DigestBuilder builder("optshard.ReplicaTensor");
    builder.BeginText(bytes);
    const absl::Status read =
        transfer.Read(replica[p].parameter.data(), static_cast<size_t>(bytes), deadline,
                      [&](absl::string_view piece) { builder.AddPart(piece); });
    if (!read.ok()) return read;
    digests.push_back(builder.value());
  }
  return digests;
}

ParameterRange PartOf(ParameterRange range, int part) {
  const int size = (range.size() + kComparedParts - 1) / kComparedParts;
  const int begin = std::min(range.begin + part * size, range.end);
  return {begin, std::min(begin + size, range.end)};
}

std::vector<uint64_t> DigestParts(absl::Span<const uint64_t> digests, ParameterRange range) {
  std::vector<uint64_t> parts;
  for (int part = 0; part < kComparedParts; ++part) {
    DigestBuilder builder("optshard.ReplicaTensors");
    const ParameterRange parameters = PartOf(range, part);
    for (int p = parameters.begin; p < parameters.end; ++p) {
      builder.AddInt(static_cast<int64_t>(digests[p]));
    }
    parts.push_back(builder.value());
  }
  return parts;
}

absl::optional<int> FirstDifferentPart(absl::Span<const uint64_t> gathered) {
  for (int part = 0; part < kComparedParts; ++part) {
    for (Rank rank = 1; rank < RanksOf(gathered); ++rank) {
      if (DigestOf(gathered, rank, part) != DigestOf(gathered, 0, part)) return part;
    }
  }
  return absl::nullopt;
}

absl::Status ReplicasDiffer(const ParameterSpace& space, int parameter,
                            absl::Span<const uint64_t> gathered, int part) {
  std::map<uint64_t, int> ranks_with;
  for (Rank rank = 0; rank < RanksOf(gathered); ++rank) {
    ++ranks_with[DigestOf(gathered, rank, part)];
  }
  uint64_t usual = DigestOf(gathered, 0, part);
  for (const auto& [digest, ranks] : ranks_with) {
    if (ranks > ranks_with[usual]) usual = digest;
  }
  std::vector<Rank> differing;
  for (Rank rank = 0; rank < RanksOf(gathered); ++rank) {
    if (DigestOf(gathered, rank, part) != usual) differing.push_back(rank);
  }
  return errors::RanksDisagree(
      differing, absl::StrFormat(
                     "parameter %d \"%s\" has not the same bits on all ranks. Nothing has changed, "
                     "and parameters after this one were not compared. Give all ranks rank 0's "
                     "values (refresh_parameters), or restart from a checkpoint",
                     parameter, space.parameter(parameter).name));
}

}  // namespace optshard
