// What the ranks of a group have alike: the spec of the first one. It need come only once, since
// the others can show by its digest that theirs is the same.
#ifndef OPTSHARD_SERVER_COORDINATOR_AGREEMENT_H_
#define OPTSHARD_SERVER_COORDINATOR_AGREEMENT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"

namespace optshard {

// Thread-compatible.
class Agreement {
 public:
  // How long a rank that was asked for its spec is waited for before another one is asked.
  static constexpr absl::Duration kSpecPatience = absl::Seconds(1);

  Agreement() = default;

  // Of a group that replaces another one: nothing is agreed upon, but the spec is known.
  static Agreement After(const Agreement& former);

  // Whether a rank has said what the others must agree with.
  bool begun() const { return agreed_ != nullptr; }
  // Once it has.
  const OptimizerSpec& spec() const { return agreed_->first.spec; }

  // Whether the request has its spec, or brings the digest of one that is known.
  bool KnowsSpecOf(const JoinRequest& request) const;

  // Whether the ranks go on with the param groups that the request's rank was adding when it ended,
  // so that it must join with them.
  bool HasWhatWasPrepared(const JoinRequest& request) const;

  // The answer to a request whose spec is not known. Asks one rank at a time, since all should have
  // the same one; but everybody whose spec differs, so that the difference can be named.
  JoinReply AskForSpec(absl::Time now);

  // The spec of `request` is known. The first one is what the others must agree with; RanksDisagree
  // as CheckAgreement for one that does not. A request that brings state agrees with what the ranks
  // had before, where that had grown.
  absl::Status Agree(const JoinRequest& request);

  // All ranks have agreed on a spec with one admission more, and go on with that.
  void Grow(OptimizerSpec spec);

  // All ranks have left again: the next one is the first.
  void BeginAnew();

 private:
  struct First {
    JoinRequest first;   // with its spec
    uint64_t digest;     // of the spec
    bool grown = false;  // param groups were added
  };

  // Shared by the groups that follow each other, since a spec may be large.
  std::shared_ptr<const First> agreed_;
  std::shared_ptr<const First> known_;  // from before; may be null
  absl::Time asked_ = absl::InfinitePast();
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_AGREEMENT_H_
