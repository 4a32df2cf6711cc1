#include "client/owner/rank_exchange.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/digest.h"
#include "common/errors.h"

namespace optshard {
namespace {

constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();

// Whether there is memory for so many bytes.
bool Resize(uint64_t size, std::string* bytes) {
  try {
    bytes->resize(size);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// What a rank says its error's code is.
absl::StatusCode CodeOf(uint64_t code) {
  return code <= static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)
             ? static_cast<absl::StatusCode>(code)
             : absl::StatusCode::kUnknown;
}

// An error's payload and message: the payload has no line break.
std::string Packed(const absl::Status& status) {
  return absl::StrCat(errors::EncodePayload(status), "\n", status.message());
}
absl::Status Unpacked(absl::StatusCode code, absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  absl::Status status(code, parts.second);
  errors::AttachPayload(status, parts.first);
  return status;
}

// What stands before the last blank.
absl::string_view NameOf(absl::string_view line) { return line.substr(0, line.rfind(' ')); }

// The first line that differs, or kNowhere.
uint64_t FirstDifferent(const std::vector<std::string>& lines,
                        const std::vector<std::string>& others) {
  const size_t common = std::min(lines.size(), others.size());
  for (size_t i = 0; i < common; ++i) {
    if (lines[i] != others[i]) return i;
  }
  return lines.size() == others.size() ? kNowhere : common;
}

std::string Difference(const std::vector<std::string>& lines, Rank rank,
                       const std::vector<std::string>& first, size_t line) {
  const absl::string_view here = line < lines.size() ? NameOf(lines[line]) : "";
  const absl::string_view there = line < first.size() ? NameOf(first[line]) : "";
  if (here == there) {
    return absl::StrCat(here, " is not the same on rank 0 and rank ", rank);
  }
  const auto text = [](absl::string_view name) {
    return name.empty() ? std::string("nothing") : std::string(name);
  };
  return absl::StrCat("where rank 0 has ", text(there), ", rank ", rank, " has ", text(here));
}

}  // namespace

absl::Status RankExchange::Share(Rank from, absl::Span<char> bytes) {
  const absl::Duration timeout =
      begun_ == 0 ? std::max(options_.timeout, options_.first_timeout) : options_.timeout;
  return options_.owner->ShareBytes({options_.call, from, bytes, begun_++}, timeout);
}

void RankExchange::AddPatience(absl::Duration more) { options_.timeout += more; }

absl::StatusOr<std::vector<uint64_t>> RankExchange::Gather(uint64_t own) {
  std::vector<uint64_t> all(options_.world_size);
  all[options_.rank] = own;
  absl::Status shared = Share(kFromEveryRank, absl::MakeSpan(reinterpret_cast<char*>(all.data()),
                                                             all.size() * sizeof(all[0])));
  if (!shared.ok()) return shared;
  return all;
}

absl::Status RankExchange::Send(Rank from, Rank to, std::string* bytes) {
  uint64_t size = bytes->size();
  absl::Status shared = Share(from, absl::MakeSpan(reinterpret_cast<char*>(&size), sizeof(size)));
  if (!shared.ok()) return shared;
  const bool sends = options_.rank == from;
  const bool keeps = !sends && (to == kFromEveryRank || to == options_.rank);
  const absl::StatusOr<std::vector<uint64_t>> fits = Gather(!keeps || Resize(size, bytes) ? 1 : 0);
  if (!fits.ok()) return fits.status();
  const auto full = std::find(fits->begin(), fits->end(), 0);
  if (full != fits->end()) {
    return absl::ResourceExhaustedError(absl::StrCat("rank ", full - fits->begin(),
                                                     " has no memory for ", size,
                                                     " bytes that rank ", from, " sends"));
  }
  std::vector<char> window;
  for (uint64_t begin = 0; begin < size; begin += kMaxShareBytes) {
    const uint64_t count = std::min<uint64_t>(kMaxShareBytes, size - begin);
    window.resize(count);
    char* const part = sends || keeps ? &(*bytes)[begin] : window.data();
    shared = Share(from, absl::MakeSpan(part, count));
    if (!shared.ok()) return shared;
  }
  return absl::OkStatus();
}

absl::Status RankExchange::Agree(const absl::Status& own) {
  const absl::StatusOr<std::vector<uint64_t>> codes =
      Gather(static_cast<uint64_t>(static_cast<int>(own.code())));
  if (!codes.ok()) return codes.status();
  const auto failed =
      std::find_if(codes->begin(), codes->end(), [](uint64_t code) { return code != 0; });
  if (failed == codes->end()) return absl::OkStatus();
  const auto rank = static_cast<Rank>(failed - codes->begin());
  std::string text = Packed(own);
  absl::Status sent = Send(rank, kFromEveryRank, &text);
  if (!sent.ok()) return sent;
  const absl::Status error = rank == options_.rank ? own : Unpacked(CodeOf(*failed), text);
  return errors::WithContext(error, absl::StrCat("rank ", rank));
}

absl::Status RankExchange::Compare(const std::vector<std::string>& lines) {
  std::string text = absl::StrJoin(lines, "\n");
  const uint64_t digest = DigestBuilder("optshard.Compare").AddText(text).value();
  const absl::StatusOr<std::vector<uint64_t>> digests = Gather(digest);
  if (!digests.ok()) return digests.status();
  const bool same = std::all_of(digests->begin(), digests->end(),
                                [&](uint64_t each) { return each == digests->front(); });
  if (same) return absl::OkStatus();
  absl::Status sent = Send(0, kFromEveryRank, &text);
  if (!sent.ok()) return sent;
  const std::vector<std::string> first = absl::StrSplit(text, '\n');
  const absl::StatusOr<std::vector<uint64_t>> places = Gather(FirstDifferent(lines, first));
  if (!places.ok()) return places.status();
  const auto earliest = std::min_element(places->begin(), places->end());
  std::vector<Rank> differing;
  for (Rank rank = 0; rank < options_.world_size; ++rank) {
    if ((*places)[rank] != kNowhere) differing.push_back(rank);
  }
  const auto shown = static_cast<Rank>(earliest - places->begin());
  std::string difference =
      shown == options_.rank ? Difference(lines, shown, first, *earliest) : std::string();
  sent = Send(shown, kFromEveryRank, &difference);
  return sent.ok() ? errors::RanksDisagree(differing, difference) : sent;
}

}  // namespace optshard
