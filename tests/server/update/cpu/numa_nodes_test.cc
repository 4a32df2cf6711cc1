#include "server/update/cpu/numa_nodes.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "gtest/gtest.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;

std::string Tree(const std::string& name, const std::vector<std::string>& cpulists) {
  const fs::path root = fs::path(::testing::TempDir()) / name;
  for (size_t node = 0; node < cpulists.size(); ++node) {
    const fs::path folder = root / ("node" + std::to_string(node));
    fs::create_directories(folder);
    std::ofstream(folder / "cpulist") << cpulists[node] << "\n";
  }
  fs::create_directories(root / "power");
  return root;
}

TEST(ParseCpuList_TheKernelsText, GivesTheSet) {
  const absl::StatusOr<cpu_set_t> cpus = ParseCpuList("0-2,8,10-11\n");
  ASSERT_TRUE(cpus.ok()) << cpus.status();
  EXPECT_EQ(CPU_COUNT(&*cpus), 6);
  for (const int cpu : {0, 1, 2, 8, 10, 11}) EXPECT_TRUE(CPU_ISSET(cpu, &*cpus)) << cpu;
  const absl::StatusOr<cpu_set_t> none = ParseCpuList("\n");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(CPU_COUNT(&*none), 0);
}

TEST(ParseCpuList_Garbage_IsRefused, WithTheText) {
  for (const char* text : {"a", "3-1", "1-2-3", "-1", "0-99999", "1,,x"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
}

TEST(NumaNodes_UnderATree, AreThoseWithCpus) {
  EXPECT_EQ(NumaNodes::Under(Tree("two", {"0-1", "2-3"})).count(), 2);
  EXPECT_EQ(NumaNodes::Under(Tree("memory_only", {"0-3", ""})).count(), 1);
  EXPECT_EQ(NumaNodes::Under("/no/such/folder").count(), 1);
}

TEST(NumaNodes_KeepThisThreadOn, LeavesTheNodesCpusThatItMayUse) {
  // The CPU on which this runs is one node, all others are another.
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  const NumaNodes nodes = NumaNodes::Under(Tree("kept", {std::to_string(cpu), "1000-1001"}));
  ASSERT_EQ(nodes.count(), 2);
  std::thread([&] {
    nodes.KeepThisThreadOn(0);
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_EQ(CPU_COUNT(&after), 1);
    EXPECT_TRUE(CPU_ISSET(cpu, &after));
    EXPECT_EQ(nodes.Here(), 0);
    // None of its CPUs is allowed: nothing changes.
    nodes.KeepThisThreadOn(1);
    EXPECT_EQ(sched_getcpu(), cpu);
  }).join();
}

TEST(NumaNodes_OfThisMachine, AreSome) {
  const NumaNodes& nodes = NumaNodes::OfThisMachine();
  EXPECT_GE(nodes.count(), 1);
  EXPECT_LT(nodes.Here(), nodes.count());
}

}  // namespace
}  // namespace optshard
