#include "server/update/cpu/worker_threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/update/cpu/numa_nodes.h"

namespace optshard {
namespace {

std::vector<int> ListOf(const cpu_set_t& cpus) {
  std::vector<int> list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) list.push_back(cpu);
  }
  return list;
}

// Those on which the calling thread may run.
std::vector<int> AllowedCpus() {
  cpu_set_t allowed;
  EXPECT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  return ListOf(allowed);
}

void KeepThisThreadOn(const std::vector<int>& cpus) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int cpu : cpus) CPU_SET(cpu, &wanted);
  ASSERT_EQ(sched_setaffinity(0, sizeof wanted, &wanted), 0);
}

TEST(WorkerThreadsTest, Threads_LessThanOne_CountsAsOne) {
  EXPECT_EQ(WorkerThreads(0).threads(), 1);
  EXPECT_EQ(WorkerThreads(3).threads(), 3);
}

TEST(WorkerThreadsTest, Run_EachNumberOfParts_EachPartOnce) {
  WorkerThreads threads(3);
  for (int parts = 1; parts <= 3; ++parts) {
    std::vector<std::atomic<int>> runs(3);
    threads.Run(parts, [&](int part) { ++runs[part]; });
    for (int part = 0; part < 3; ++part) EXPECT_EQ(runs[part], part < parts ? 1 : 0) << part;
  }
}

TEST(WorkerThreadsTest, Run_CallerOnOneCpuAndThenAnother_WorkerMayNotRunThere) {
  // A thread of its own: what it may run on ends with it.
  std::thread([] {
    const NumaNodes& nodes = NumaNodes::OfThisMachine();
    const std::vector<int> cpus = ListOf(nodes.AllowedNear(nodes.Here()));
    if (cpus.size() < 2) GTEST_SKIP() << "one CPU only";
    KeepThisThreadOn(cpus);  // not to another memory node meanwhile
    WorkerThreads threads(2);
    for (const int here : {cpus[0], cpus[1], cpus[0]}) {
      KeepThisThreadOn({here});
      std::vector<int> of_worker;
      threads.Run(2, [&](int part) {
        if (part == 1) of_worker = AllowedCpus();
      });
      std::vector<int> others = cpus;
      others.erase(std::find(others.begin(), others.end(), here));
      EXPECT_EQ(of_worker, others);
    }
  }).join();
}

TEST(WorkerThreadsTest, Run_FewerCpusThanThreads_WorkersMayUseAll) {
  std::thread([] {
    const std::vector<int> one = {AllowedCpus().front()};
    KeepThisThreadOn(one);
    WorkerThreads threads(2);
    std::vector<int> of_worker;
    threads.Run(2, [&](int part) {
      if (part == 1) of_worker = AllowedCpus();
    });
    EXPECT_EQ(of_worker, one);
  }).join();
}

}  // namespace
}  // namespace optshard
