#include "common/dataplane/co_location.h"

#include <unistd.h>

#include <climits>
#include <cstddef>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"

namespace optshard {
namespace {

// An identity is these, with blanks between them: network namespace, process namespace, boot id,
// user.
constexpr size_t kIdentityFields = 4;
constexpr size_t kBootId = 2;

std::string Key(Rank rank) { return absl::StrCat("host/", rank); }

// Two letters, then the identity.
std::string Encode(const RankOffer& offer) {
  return absl::StrCat(offer.asks_for_gloo ? "G" : "-", offer.has_replica ? "R" : "-",
                      offer.identity);
}

absl::StatusOr<RankOffer> Decode(const std::string& text, Rank rank) {
  if (text.size() < 2 || (text[0] != 'G' && text[0] != '-') || (text[1] != 'R' && text[1] != '-')) {
    return absl::InternalError(
        absl::StrCat("rank ", rank,
                     " describes its host in a way that this version does not understand; run "
                     "the same version of optshard everywhere"));
  }
  return RankOffer{text.substr(2), text[0] == 'G', text[1] == 'R'};
}

}  // namespace

std::string SharingIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::string identity;
  if (!(file >> boot)) return "";
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    char name[PATH_MAX] = "";
    if (readlink(space, name, sizeof name - 1) < 0) return "";
    absl::StrAppend(&identity, name, " ");
  }
  return absl::StrCat(identity, boot, " ", geteuid());
}

bool OnOneKernel(absl::string_view identity, absl::string_view other) {
  const std::vector<absl::string_view> fields = absl::StrSplit(identity, ' ');
  const std::vector<absl::string_view> others = absl::StrSplit(other, ' ');
  return fields.size() == kIdentityFields && others.size() == kIdentityFields &&
         fields[kBootId] == others[kBootId];
}

absl::StatusOr<std::vector<RankOffer>> ExchangeOffers(Rendezvous& rendezvous, Rank rank,
                                                      int world_size, const RankOffer& own,
                                                      absl::Time deadline) {
  absl::Status told = rendezvous.Put(Key(rank), Encode(own));
  if (!told.ok()) return told;
  std::vector<RankOffer> offers;
  for (Rank peer = 0; peer < world_size; ++peer) {
    absl::StatusOr<std::string> heard = rendezvous.Get(Key(peer), deadline);
    if (absl::IsDeadlineExceeded(heard.status())) {
      return errors::PeersTimedOut({peer}, "asking the ranks which host they run on");
    }
    if (!heard.ok()) return heard.status();
    absl::StatusOr<RankOffer> offer = Decode(*heard, peer);
    if (!offer.ok()) return offer.status();
    offers.push_back(*std::move(offer));
  }
  return offers;
}

}  // namespace optshard
