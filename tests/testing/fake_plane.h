// An in-process data plane for tests: the ranks of one group share a hub, one thread a rank.
//
//   FakeHub hub(FakeHub::Options{.world_size = 3, .mode = FakeHub::Mode::kDelayed});
//   std::unique_ptr<DataPlane> plane = hub.MakePlane(rank);   // one a rank
//
// It is as unforgiving as the DataPlane's contract allows:
//  - kImmediate copies inputs when an operation starts and writes outputs as early as it can, also
//    into the memory of a rank whose thread is elsewhere.
//  - kDelayed, like a stream: overwrites pure outputs with 0xff bytes when an operation starts and
//    gives them their values only in Wait (or when a FakeStream, on which the operation was
//    ordered, is synchronised); reads inputs as late as possible: when their rank waits, or another
//    needs them. An input that changed in between fails the operation with INTERNAL, on all ranks.
//  - Operations that do not match across the ranks fail with RanksDisagree, on all ranks.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_PLANE_H_
#define OPTSHARD_TESTS_TESTING_FAKE_PLANE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/dataplane/data_plane.h"

namespace optshard::testing {

class FakeHubState;

// Thread-safe. Planes and tickets may outlive it.
class FakeHub {
 public:
  enum class Mode { kImmediate, kDelayed };
  struct Options {
    int world_size = 1;
    Mode mode = Mode::kImmediate;
    // The planes have DataPlane::node where these are given: every rank in one of them.
    std::vector<std::vector<Rank>> nodes;
  };

  explicit FakeHub(Options options);
  ~FakeHub();  // releases the hung

  // Once a rank. A plane that is destroyed before its Close has begun is lost to the others.
  std::unique_ptr<DataPlane> MakePlane(Rank rank);

  // The planes, made before or after, reach these; where there are nodes, the nodes' planes do.
  void ShareReplicas(PeerReplicas replicas);

  // Faults, at the rank's operation number `operation` (Reduce, Publish and AllGather calls,
  // counted from 0 over its life, those in its node's plane, too). A killed rank takes no part in
  // that operation: the call and all later ones return CANCELLED, the others' waits PeerLost naming
  // it, at once. A hung rank's call blocks until ReleaseHung and then returns CANCELLED; the others
  // time out, naming it.
  void KillAt(Rank rank, int64_t operation);
  void HangAt(Rank rank, int64_t operation);
  // The rank takes its part in that operation and dies while it waits for it, when all others have
  // waited: they have what it gave, and it does not know. A later operation of theirs fails.
  void KillInWaitFor(Rank rank, int64_t operation);
  void Kill(Rank rank);  // now
  void ReleaseHung();

  // Waits until the rank hangs in HangAt's operation; false at the deadline.
  bool AwaitHung(Rank rank, absl::Time deadline);

  // Operations that the rank has started so far.
  int64_t OperationsStarted(Rank rank) const;
  // Of Publish calls so far whose owner it was; each counted once, to however many ranks it went.
  int64_t PublishedBytes(Rank rank) const;

 private:
  std::shared_ptr<FakeHubState> state_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_PLANE_H_
