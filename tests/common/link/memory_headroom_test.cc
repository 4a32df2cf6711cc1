#include "common/link/memory_headroom.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr char kV2Mount[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kV1Mount[] =
    "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

// A made-up machine.
class MemoryHeadroomTest : public ::testing::Test {
 protected:
  MemoryHeadroomTest() {
    std::string root = std::string(std::getenv("TEST_TMPDIR")) + "/root_XXXXXX";
    EXPECT_NE(mkdtemp(&root[0]), nullptr);
    root_ = root;
  }
  ~MemoryHeadroomTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void V2(const std::string& folder, const std::string& max, const std::string& current,
          const std::string& inactive = "0") const {
    Write(folder + "/memory.max", max + "\n");
    Write(folder + "/memory.current", current + "\n");
    Write(folder + "/memory.stat",
          "anon 1\nfile 5\nworkingset_inactive_file 7\ninactive_file " + inactive + "\n");
  }
  void V1(const std::string& folder, const std::string& limit, const std::string& usage,
          const std::string& stat = "") const {
    Write(folder + "/memory.limit_in_bytes", limit + "\n");
    Write(folder + "/memory.usage_in_bytes", usage + "\n");
    Write(folder + "/memory.stat", stat);
  }
  absl::optional<int64_t> Headroom() const { return MemoryHeadroomUnder(root_); }

  std::string root_;
};

TEST_F(MemoryHeadroomTest, NothingCanBeRead_IsNothing) { EXPECT_EQ(Headroom(), absl::nullopt); }

TEST_F(MemoryHeadroomTest, MeminfoAlone_IsWhatIsAvailable) {
  Write("/proc/meminfo", "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:     300 kB\n");
  EXPECT_EQ(Headroom(), 300 * 1024);
}

TEST_F(MemoryHeadroomTest, V2_OneLimit_IsWhatItLeavesWithThePageCache) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup/job", "1000", "700", "50");
  EXPECT_EQ(Headroom(), 1000 - 700 + 50);
}

TEST_F(MemoryHeadroomTest, V2_NestedLimits_TheTightestCounts) {
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup/a", "1000", "900");    // 100 left
  V2("/sys/fs/cgroup/a/b", "500", "450");   // 50 left
  V2("/sys/fs/cgroup/a/b/c", "max", "10");  // no limit of its own
  V2("/sys/fs/cgroup/a/other", "1", "1");   // not around this process
  EXPECT_EQ(Headroom(), 50);
  V2("/sys/fs/cgroup/a", "1000", "970");
  EXPECT_EQ(Headroom(), 30);
  V2("/sys/fs/cgroup/a/b/c", "15", "10");
  EXPECT_EQ(Headroom(), 5);
}

TEST_F(MemoryHeadroomTest, V2_MoreIsUsedThanTheLimit_IsZero) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup/job", "1000", "1500", "100");
  EXPECT_EQ(Headroom(), 0);
}

TEST_F(MemoryHeadroomTest, V2_MoreCacheThanUse_IsTheLimitAtMost) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup/job", "1000", "100", "200");
  EXPECT_EQ(Headroom(), 1000);
}

TEST_F(MemoryHeadroomTest, V2_NoLimitAnywhere_IsWhatTheMachineHas) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup/job", "max", "100");
  EXPECT_EQ(Headroom(), absl::nullopt);
  Write("/proc/meminfo", "MemAvailable: 7 kB\n");
  EXPECT_EQ(Headroom(), 7 * 1024);
}

TEST_F(MemoryHeadroomTest, V2_NamespaceOfItsOwn_ReadsTheRootOfTheMount) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup", "1000", "400");
  EXPECT_EQ(Headroom(), 600);
}

TEST_F(MemoryHeadroomTest, V2_PathIsNotUnderTheMount_ReadsTheRootOfTheMount) {
  // A container that shares the host's cgroup namespace: the path is the host's.
  Write("/proc/self/cgroup", "0::/kubepods/pod1/container1\n");
  Write("/proc/self/mountinfo",
        "30 23 0:26 /other/container1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  V2("/sys/fs/cgroup", "1000", "300");
  EXPECT_EQ(Headroom(), 700);
  // The path would be below the mount, but is not there.
  Write("/proc/self/mountinfo", kV2Mount);
  EXPECT_EQ(Headroom(), 700);
}

TEST_F(MemoryHeadroomTest, V2_PathOutsideOfTheNamespace_ReadsTheRootOfTheMount) {
  Write("/proc/self/cgroup", "0::/../../elsewhere\n");
  Write("/proc/self/mountinfo", kV2Mount);
  V2("/sys/fs/cgroup", "1000", "300");
  V2("/sys/elsewhere", "1", "1");
  EXPECT_EQ(Headroom(), 700);
}

TEST_F(MemoryHeadroomTest, V2_SeveralMounts_TakesTheOneThatShowsThisProcess) {
  Write("/proc/self/cgroup", "0::/pods/mine\n");
  Write("/proc/self/mountinfo",
        "30 23 0:26 /pods/min /theirs rw - cgroup2 cgroup2 rw\n"
        "31 23 0:26 /pods/mine /with\\040blank rw - cgroup2 cgroup2 rw\n");
  V2("/theirs", "10", "9");
  V2("/with blank", "1000", "200");
  EXPECT_EQ(Headroom(), 800);
}

TEST_F(MemoryHeadroomTest, V1_LimitAndUse_IsWhatItLeavesWithThePageCache) {
  Write("/proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/job\n1:name=systemd:/\n");
  Write("/proc/self/mountinfo", kV1Mount);
  V1("/sys/fs/cgroup/memory/job", "1000", "600", "inactive_file 1\ntotal_inactive_file 25\n");
  V1("/sys/fs/cgroup/memory", "9223372036854771712", "5000");
  EXPECT_EQ(Headroom(), 425);
}

TEST_F(MemoryHeadroomTest, V1_LimitOfAnAncestorThatIsHidden_Counts) {
  Write("/proc/self/cgroup", "2:memory:/docker/1\n");
  Write("/proc/self/mountinfo",
        "35 31 0:32 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  V1("/sys/fs/cgroup/memory", "9223372036854771712", "600", "hierarchical_memory_limit 800\n");
  EXPECT_EQ(Headroom(), 200);
}

TEST_F(MemoryHeadroomTest, V1_NoLimit_IsNothing) {
  Write("/proc/self/cgroup", "2:memory:/\n");
  Write("/proc/self/mountinfo", kV1Mount);
  V1("/sys/fs/cgroup/memory", "9223372036854771712", "600",
     "hierarchical_memory_limit 9223372036854771712\n");
  EXPECT_EQ(Headroom(), absl::nullopt);
}

TEST_F(MemoryHeadroomTest, V1BesideV2_TheTightestCounts) {
  Write("/proc/self/cgroup", "2:memory:/job\n0::/job\n");
  Write("/proc/self/mountinfo",
        std::string(kV1Mount) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  V1("/sys/fs/cgroup/memory/job", "1000", "600");
  std::filesystem::create_directories(root_ + "/sys/fs/cgroup/unified/job");  // no controller
  EXPECT_EQ(Headroom(), 400);
  V2("/sys/fs/cgroup/unified/job", "100", "90");
  EXPECT_EQ(Headroom(), 10);
  Write("/proc/meminfo", "MemAvailable: 0 kB\n");
  EXPECT_EQ(Headroom(), 0);
}

TEST_F(MemoryHeadroomTest, FilesMissingOrNoNumbers_AreLeftOut) {
  Write("/proc/self/cgroup", "nonsense\n0::/job\n");
  Write("/proc/self/mountinfo", std::string("nonsense\n\n") + kV2Mount);
  Write("/sys/fs/cgroup/job/memory.max", "100\n");  // but nothing says what is used
  EXPECT_EQ(Headroom(), absl::nullopt);
  V2("/sys/fs/cgroup/job", "lots", "10");
  EXPECT_EQ(Headroom(), absl::nullopt);
  V2("/sys/fs/cgroup/job", "100", "-1");
  EXPECT_EQ(Headroom(), absl::nullopt);
  Write("/sys/fs/cgroup/job/memory.current", "10\n");
  std::filesystem::remove(root_ + "/sys/fs/cgroup/job/memory.stat");
  EXPECT_EQ(Headroom(), 90);
}

TEST(MemoryHeadroom, ThisMachine_IsSomething) {
  const absl::optional<int64_t> headroom = MemoryHeadroom();
  ASSERT_TRUE(headroom.has_value());
  EXPECT_GT(*headroom, 0);
}

}  // namespace
}  // namespace optshard
