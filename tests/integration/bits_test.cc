// Real processes: sharded runs have the bits of the unsharded one, on 1 to 4 ranks, over every
// plane, with every rule in a param group of its own.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using testing::MiniCluster;

constexpr int kParameters = 30;
constexpr int kElements = 70001;

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

std::vector<float> ReadFloats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// Ranks of a shard server, "0-3", and its arguments.
struct Server {
  int first = 0;
  int last = 0;
  std::vector<std::string> arguments;
};

// Trains and returns every rank's parameters. Ranks of the same name in `nodes` are one node group;
// those of a server are attached to it.
std::vector<std::vector<float>> TrainOn(int world_size, const std::vector<std::string>& arguments,
                                        const std::vector<std::string>& nodes = {},
                                        const std::vector<Server>& servers = {}) {
  MiniCluster::Options options;
  options.world_size = world_size;
  auto cluster = MiniCluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> attach(world_size, "embedded");
  for (const Server& server : servers) {
    const absl::StatusOr<std::string> added =
        (*cluster)->AddServer(absl::StrCat(server.first, "-", server.last), server.arguments);
    EXPECT_TRUE(added.ok()) << added.status();
    for (int rank = server.first; rank <= server.last; ++rank) attach[rank] = *added;
  }
  const auto dump = [](int rank) { return absl::StrCat(::testing::TempDir(), "/dump", rank); };
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::string> all = {absl::StrCat("--dump=", dump(rank)),
                                    absl::StrCat("--parameters=", kParameters),
                                    absl::StrCat("--elements=", kElements),
                                    absl::StrCat("--attach=", attach[rank]), "--rule=each"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    if (!nodes.empty()) all.push_back(absl::StrCat("--node=", nodes[rank]));
    EXPECT_TRUE((*cluster)->AddTrainer(rank, all).ok());
  }
  std::vector<std::vector<float>> result;
  for (int rank = 0; rank < world_size; ++rank) {
    auto& trainer = (*cluster)->trainer(rank);
    EXPECT_EQ(trainer.WaitFor("done", Deadline()).status(), absl::OkStatus());
    EXPECT_EQ(*trainer.process().Wait(Deadline()), 0) << trainer.output();
    result.push_back(ReadFloats(dump(rank)));
    EXPECT_GT(result.back().size(), static_cast<size_t>(kElements));
  }
  return result;
}

// The first difference in bits: parameter, index and both values; empty where there is none.
std::string Difference(const std::vector<float>& expected, const std::vector<float>& actual) {
  if (expected.size() != actual.size()) return "another number of elements";
  size_t index = 0;
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    for (int within = 0; within < kElements / (parameter + 1); ++within, ++index) {
      uint32_t bits[2];
      std::memcpy(&bits[0], &expected[index], sizeof bits[0]);
      std::memcpy(&bits[1], &actual[index], sizeof bits[1]);
      if (bits[0] == bits[1]) continue;
      return absl::StrFormat(
          "parameter %d, index %d: expected %08x, got %08x (the seeds are the "
          "trainer's: rank, step and parameter)",
          parameter, within, bits[0], bits[1]);
    }
  }
  return "";
}

class IntegrationBitsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  }
};

// Every way to train sharded: one that steps by messages, over both planes, and one that steps in
// one pass over memory that the ranks share.
const std::vector<std::vector<std::string>>& Ways() {
  static const auto* const kWays = new std::vector<std::vector<std::string>>{
      {"--plane=gloo", "--policy=greedy", "--bucket_view=off"},
      {"--plane=gloo", "--policy=balanced", "--bucket_view=off"},
      {"--plane=gloo", "--policy=greedy"},
      {"--plane=shm", "--policy=balanced", "--bucket_view=off"},
      {"--plane=shm", "--policy=greedy"},
      {"--plane=shm", "--policy=balanced"},
      {"--plane=shm", "--policy=balanced", "--share_parameters"},
  };
  return *kWays;
}

TEST_P(IntegrationBitsTest, Train_Sharded_HasTheBitsOfTheUnshardedRun) {
  const std::vector<std::vector<float>> unsharded =
      TrainOn(GetParam(), {"--plane=gloo", "--policy=replicated", "--bucket_view=off"});
  for (int rank = 1; rank < GetParam(); ++rank) {
    EXPECT_EQ(Difference(unsharded[0], unsharded[rank]), "") << "replica of rank " << rank;
  }
  for (const std::vector<std::string>& way : Ways()) {
    const std::vector<std::vector<float>> sharded = TrainOn(GetParam(), way);
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_EQ(Difference(unsharded[0], sharded[rank]), "")
          << absl::StrJoin(way, " ") << ", rank " << rank;
    }
  }
}

TEST(IntegrationBits, Train_FourRanksInTwoNodeGroups_HasTheSameBitsOverEveryPlane) {
  if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  const std::vector<std::string> nodes = {"a", "b", "a", "b"};
  const std::vector<std::vector<float>> gloo =
      TrainOn(4, {"--plane=gloo", "--bucket_view=off"}, nodes);
  for (const std::vector<std::string>& way : Ways()) {
    const std::vector<std::vector<float>> other = TrainOn(4, way, nodes);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(Difference(gloo[0], other[rank]), "")
          << absl::StrJoin(way, " ") << ", rank " << rank;
    }
  }
  // Beside the trainers: one server of all ranks; one a node, in shared memory and over Gloo.
  const std::vector<std::vector<Server>> ways = {
      {{0, 3, {}}},
      {{0, 1, {}}, {2, 3, {}}},
      {{0, 1, {"--plane=gloo"}}, {2, 3, {"--plane=gloo"}}},
  };
  for (size_t way = 0; way < ways.size(); ++way) {
    const std::vector<std::vector<float>> other = TrainOn(4, {}, nodes, ways[way]);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(Difference(gloo[0], other[rank]), "") << "servers " << way << ", rank " << rank;
    }
  }
  // The values would show another order.
  EXPECT_NE(Difference(gloo[0], TrainOn(4, {"--plane=gloo", "--bucket_view=off"})[0]), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, IntegrationBitsTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace optshard
