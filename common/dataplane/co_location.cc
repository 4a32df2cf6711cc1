#include "common/dataplane/co_location.h"

#include <unistd.h>

#include <climits>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace optshard {
namespace {

std::string Key(Rank rank) { return absl::StrCat("host/", rank); }

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

absl::StatusOr<bool> AllShareOneHost(Rendezvous& rendezvous, Rank rank, int world_size,
                                     const std::string& identity, absl::Time deadline) {
  absl::Status told = rendezvous.Put(Key(rank), identity);
  if (!told.ok()) return told;
  bool all = !identity.empty();
  std::string first;
  for (Rank peer = 0; peer < world_size; ++peer) {
    absl::StatusOr<std::string> heard = rendezvous.Get(Key(peer), deadline);
    if (absl::IsDeadlineExceeded(heard.status())) {
      return errors::PeersTimedOut({peer}, "asking the ranks which host they run on");
    }
    if (!heard.ok()) return heard.status();
    if (peer == 0) first = *heard;
    all = all && *heard == first && !heard->empty();
  }
  return all;
}

}  // namespace optshard
