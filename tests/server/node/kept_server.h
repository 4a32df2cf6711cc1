// A shard server in a process of its own that can be killed under its trainer, and what keeps its
// memory.
#ifndef OPTSHARD_TESTS_SERVER_NODE_KEPT_SERVER_H_
#define OPTSHARD_TESTS_SERVER_NODE_KEPT_SERVER_H_

#include <signal.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/keeper_link.h"
#include "tests/server/node/keeper_rig.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {

// Of all ranks of a job, whose coordinator it has and takes with it. Make it before there are other
// threads; Kill and Return are bound to one.
class KeptServer {
 public:
  // `prepare` sees what each server is given, before it begins; the first one's life is 1.
  // `configure` changes its options, in its process.
  explicit KeptServer(
      std::function<void(int life, std::vector<KeptUnit>* units)> prepare = [](int, auto*) {},
      int world_size = 1,
      std::function<void(NodeOwners::Options* options)> configure = [](auto*) {})
      : world_size_(world_size),
        configure_(std::move(configure)),
        keeper_([this, prepare](KeeperLink& link) { return Serve(link, prepare); }) {}
  ~KeptServer() {
    board_->stage = kEnd;
    EXPECT_EQ(keeper_.Wait(), 0);
  }
  KeptServer(const KeptServer&) = delete;
  KeptServer& operator=(const KeptServer&) = delete;

  const LocalAddress& address() const { return address_; }

  // Returns once it is dead. The next one does not listen before Return is called.
  void Kill() {
    const int next = board_->ready + 1;
    ++board_->stage;
    EXPECT_TRUE(Board::Await(board_->ready, next));
  }
  void Return() { ++board_->stage; }

 private:
  static constexpr int kEnd = 1000;

  // Life n begins at stage 2n - 2 and is killed at stage 2n - 1.
  int Serve(KeeperLink& link, const std::function<void(int, std::vector<KeptUnit>*)>& prepare) {
    board_->ready = link.life();
    if (!Board::Await(board_->stage, 2 * link.life() - 2)) return 1;
    if (board_->stage == kEnd) return 0;
    std::vector<KeptUnit> units = link.TakeInherited();
    prepare(link.life(), &units);
    LocalCoordinator coordinator(world_size_);
    NodeRig::Options options;
    options.world_size = world_size_;
    options.address = address_;
    options.owners.coordinator = &coordinator;
    options.owners.keeper = &link;
    configure_(&options.owners);
    const NodeRig rig(std::move(options), std::move(units));
    if (!Board::Await(board_->stage, 2 * link.life() - 1)) return 1;
    if (board_->stage != kEnd) raise(SIGKILL);
    return 0;
  }

  const int world_size_;
  const std::function<void(NodeOwners::Options* options)> configure_;
  const LocalAddress address_ = NewNodeAddress();
  const std::shared_ptr<Board> board_ = Board::Make();
  KeeperProcess keeper_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_NODE_KEPT_SERVER_H_
