// Real processes: sharded runs have the bits of the unsharded one, over every plane, embedded and
// attached to shard servers, for every rule with every type and form of state.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/trained_tensors.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;
using testing::Difference;
using testing::MiniCluster;
using testing::ReadTensors;
using testing::TrainedTensor;

absl::Time Deadline() { return absl::Now() + absl::Seconds(120); }

// Ranks of a shard server, "0-3", and its arguments.
struct Server {
  int first = 0;
  int last = 0;
  std::vector<std::string> arguments;
};

struct Way {
  std::string name;
  std::vector<std::string> arguments;
  std::vector<Server> servers = {};  // the ranks of none are embedded
};

// What a job has left, in files; removed with it.
class Trained {
 public:
  // One launch trains the table of all rules (tests/testing/rule_table.h) with each of these
  // policies. Ranks of the same name in `nodes` are one node group.
  Trained(int world_size, const std::string& policies, const Way& way,
          const std::vector<std::string>& nodes = {})
      : way_(way.name), world_size_(world_size) {
    std::string name = ::testing::TempDir() + "/trained_XXXXXX";
    directory_ = mkdtemp(name.data());
    MiniCluster::Options options;
    options.world_size = world_size;
    options.coordinator_arguments = {"--log_level=warning"};
    auto cluster = MiniCluster::Start(options);
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    std::vector<std::string> attach(world_size, "embedded");
    for (const Server& server : way.servers) {
      const auto added =
          (*cluster)->AddServer(absl::StrCat(server.first, "-", server.last), server.arguments);
      EXPECT_TRUE(added.ok()) << added.status();
      for (int rank = server.first; rank <= server.last; ++rank) attach[rank] = *added;
    }
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<std::string> all = {absl::StrCat("--dump=", directory_.string()),
                                      absl::StrCat("--table=", policies),
                                      absl::StrCat("--attach=", attach[rank])};
      all.insert(all.end(), way.arguments.begin(), way.arguments.end());
      if (!nodes.empty()) all.push_back(absl::StrCat("--node=", nodes[rank]));
      EXPECT_TRUE((*cluster)->AddTrainer(rank, all).ok());
    }
    for (int rank = 0; rank < world_size; ++rank) {
      auto& trainer = (*cluster)->trainer(rank);
      EXPECT_EQ(trainer.WaitFor("done", Deadline()).status(), absl::OkStatus()) << way_;
      EXPECT_EQ(*trainer.process().Wait(Deadline()), 0) << way_ << "\n" << trainer.output();
    }
  }
  ~Trained() { fs::remove_all(directory_); }
  Trained(const Trained&) = delete;
  Trained& operator=(const Trained&) = delete;

  // The optimizers that were trained with a policy, "InFloat32.elements."
  std::vector<std::string> Optimizers(const std::string& policy) const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(directory_)) {
      const std::string filename = file.path().filename();
      absl::string_view name = filename;
      if (absl::ConsumeSuffix(&name, absl::StrCat(policy, ".0"))) names.emplace_back(name);
    }
    return names;
  }

  std::vector<std::vector<TrainedTensor>> Read(const std::string& optimizer) const {
    std::vector<std::vector<TrainedTensor>> ranks;
    for (int rank = 0; rank < world_size_; ++rank) {
      ranks.push_back(ReadTensors(directory_ / absl::StrCat(optimizer, ".", rank)));
    }
    return ranks;
  }

  const std::string& way() const { return way_; }

 private:
  const std::string way_;
  const int world_size_;
  fs::path directory_;
};

// With whole parameters by one rank, and cut.
constexpr char kSharded[] = "greedy,balanced";

// The first difference of each optimizer; "" where there is none.
std::string Differences(const Trained& unsharded, const Trained& sharded) {
  std::vector<std::string> differences;
  for (const std::string policy : {"greedy", "balanced"}) {
    const std::vector<std::string> names = sharded.Optimizers(policy);
    if (names.empty()) differences.push_back(absl::StrCat("nothing was trained ", policy));
    for (const std::string& name : names) {
      const std::string difference =
          Difference(unsharded.Read(name + "replicated")[0], sharded.Read(name + policy));
      if (difference.empty()) continue;
      differences.push_back(absl::StrCat(sharded.way(), ", ", name, policy, ": ", difference));
    }
  }
  return absl::StrJoin(differences, "\n");
}

Way Unsharded() { return {"unsharded", {"--plane=gloo", "--bucket_view=off"}}; }

class IntegrationBitsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  }
};

TEST_P(IntegrationBitsTest, Train_Sharded_HasTheBitsOfTheUnshardedRun) {
  const int world_size = GetParam();
  const Trained unsharded(world_size, "replicated", Unsharded());
  const std::vector<std::string> optimizers = unsharded.Optimizers("replicated");
  EXPECT_GT(optimizers.size(), 7u);
  for (const std::string& name : optimizers) {
    const auto replicas = unsharded.Read(name + "replicated");
    EXPECT_EQ(Difference(replicas[0], replicas), "") << name;
  }
  for (const Way& way : {Way{"one pass", {"--plane=shm"}},
                         Way{"messages in shared memory", {"--plane=shm", "--bucket_view=off"}},
                         Way{"messages over Gloo", {"--plane=gloo"}},
                         Way{"attached", {}, {{0, world_size - 1, {}}}}}) {
    EXPECT_EQ(Differences(unsharded, Trained(world_size, kSharded, way)), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, IntegrationBitsTest, ::testing::Values(1, 2, 3, 5));

TEST(IntegrationBits, Train_FourRanksInTwoNodeGroups_HasTheSameBitsOverEveryPlane) {
  if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  const std::vector<std::string> nodes = {"a", "b", "a", "b"};
  std::vector<Way> ways = {
      {"Gloo, in place", {"--plane=gloo", "--bucket_view=off"}},
      {"Gloo", {"--plane=gloo"}},
      {"shared memory, in place", {"--plane=shm", "--bucket_view=off"}},
      {"shared memory", {"--plane=shm"}},
      {"one copy of the parameters", {"--plane=shm", "--share_parameters"}},
      {"one server", {}, {{0, 3, {}}}},
      {"a server a node", {}, {{0, 1, {}}, {2, 3, {}}}},
      {"servers over Gloo", {}, {{0, 1, {"--plane=gloo"}}, {2, 3, {"--plane=gloo"}}}},
  };
  Way unsharded_way = Unsharded();
  unsharded_way.arguments.push_back("--table_states=1");
  const Trained unsharded(4, "replicated", unsharded_way, nodes);
  for (Way& way : ways) {
    way.arguments.push_back("--table_states=1");
    EXPECT_EQ(Differences(unsharded, Trained(4, kSharded, way, nodes)), "");
  }
  // The values would show another order.
  EXPECT_NE(Differences(unsharded, Trained(4, kSharded, ways[0])), "");
}

}  // namespace
}  // namespace optshard
