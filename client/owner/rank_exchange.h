// What the ranks tell each other in a call that all of them make: whether they agree, and bytes of
// any number.
#ifndef OPTSHARD_CLIENT_OWNER_RANK_EXCHANGE_H_
#define OPTSHARD_CLIENT_OWNER_RANK_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/owner/owner_link.h"
#include "common/byte_share.h"
#include "common/ids.h"

namespace optshard {

// One attempt at a call of all ranks (call_attempts.h). All of them make the same exchanges in the
// same order, and each says how many came before it: a rank that has begun the call again is never
// paired with one that goes on with it (docs/decisions/0019). Errors that are not the calls' own
// are those of OwnerLink::ShareBytes, on all ranks: then no other call may follow. Bound to the
// trainer's thread.
class RankExchange {
 public:
  struct Options {
    OwnerLink* owner = nullptr;  // outlives the exchange
    ShareCall call = ShareCall::kConsolidate;
    Rank rank = 0;
    int world_size = 1;
    absl::Duration timeout;                               // of each share
    absl::Duration first_timeout = absl::ZeroDuration();  // of the first one, where it is longer
    // Whether the call makes torn state whole, parameters included: what all ranks do once they are
    // told that it is torn.
    bool replaces_torn_state = false;
  };

  explicit RankExchange(const Options& options) : options_(options) {}
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // As OwnerLink::ShareBytes.
  absl::Status Share(Rank from, absl::Span<char> bytes);

  // By rank. At most 16,384 ranks.
  absl::StatusOr<std::vector<uint64_t>> Gather(uint64_t own);

  // `to`, or with kFromEveryRank all ranks, get what `from` has in `bytes`. The others take part.
  // RESOURCE_EXHAUSTED on all ranks, naming one that has no memory for it.
  absl::Status Send(Rank from, Rank to, std::string* bytes);

  // OK where all ranks give OK; else the error of the lowest rank that has one, on all ranks, which
  // says which rank it is, with its payload.
  absl::Status Agree(const absl::Status& own);

  // RanksDisagree with the first line that not all ranks have alike, where there is one. A line is
  // a name, a blank and what is compared, and only the name is shown.
  absl::Status Compare(const std::vector<std::string>& lines);

  // From now on shares wait so much longer: ranks have something to do between them.
  void AddPatience(absl::Duration more);

  const Options& options() const { return options_; }
  // How many shares were begun.
  uint32_t begun() const { return begun_; }

 private:
  Options options_;
  uint32_t begun_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_RANK_EXCHANGE_H_
