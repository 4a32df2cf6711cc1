// A job on this machine for integration tests: a real coordinator and real trainer processes, which
// can be killed and stopped.
#ifndef OPTSHARD_TESTS_TESTING_MINI_CLUSTER_H_
#define OPTSHARD_TESTS_TESTING_MINI_CLUSTER_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/child_process.h"

namespace optshard::testing {

// A trainer process (tests/testing/test_trainer_main.cc), which tells what happens to it as one
// line of JSON an event. Bound to a thread.
class TestTrainer {
 public:
  static absl::StatusOr<std::unique_ptr<TestTrainer>> Start(std::vector<std::string> arguments);
  ~TestTrainer();

  // The next event of that kind; earlier ones of other kinds are passed over. UNAVAILABLE with all
  // that it said where the trainer has ended instead; DEADLINE_EXCEEDED.
  absl::StatusOr<nlohmann::json> WaitFor(const std::string& event, absl::Time deadline);
  // Of one of these kinds.
  absl::StatusOr<nlohmann::json> WaitForAny(const std::vector<std::string>& events,
                                            absl::Time deadline);

  // Lets a trainer go on that waits for it after a step, to the next step after which it does.
  void Resume();
  // Lets a trainer go on, or end, that waits for it after a step or an error, and wait no more.
  void Release();

  ChildProcess& process() { return *process_; }
  const std::string& output() const { return output_; }

 private:
  TestTrainer() = default;
  bool ReadMore(absl::Time deadline);

  std::unique_ptr<ChildProcess> process_;
  int output_descriptor_ = -1;
  int link_ = -1;
  std::string output_;
  size_t consumed_ = 0;
};

// Bound to a thread.
class MiniCluster {
 public:
  struct Options {
    int world_size = 2;
    bool coordinator = true;  // false: nobody listens at its address
    std::vector<std::string> coordinator_arguments;
    int coordinator_output = -1;  // descriptor for what it says; -1: this process's
  };

  static absl::StatusOr<std::unique_ptr<MiniCluster>> Start(const Options& options);
  ~MiniCluster();

  // A shard server for these ranks ("0-3"); returns the trainers' option attach.
  absl::StatusOr<std::string> AddServer(const std::string& ranks,
                                        const std::vector<std::string>& arguments = {});

  // Likewise at the address of an earlier one.
  absl::Status AddServerAt(const std::string& attach, const std::string& ranks,
                           const std::vector<std::string>& arguments = {});

  // A trainer of the job; `arguments` are added to --coordinator, --rank and --world_size.
  absl::Status AddTrainer(int rank, const std::vector<std::string>& arguments);
  absl::Status AddTrainers(const std::vector<std::string>& arguments);  // of all ranks

  // In the order in which they were added.
  TestTrainer& trainer(int index) { return *trainers_[index]; }
  const std::string& coordinator_address() const { return address_; }
  ChildProcess& coordinator() { return *coordinator_; }
  // The keeper, where the server has one.
  ChildProcess& server(int index) { return *servers_[index]; }
  // The keeper's child, which serves. NOT_FOUND where it has none at present.
  absl::StatusOr<pid_t> ServerProcess(int index) const;

 private:
  MiniCluster() = default;

  Options options_;
  std::string address_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::string directory_;
  std::vector<std::unique_ptr<ChildProcess>> servers_;
  std::vector<std::unique_ptr<TestTrainer>> trainers_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_MINI_CLUSTER_H_
