// A client that is no rank of the job reads its state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/control/optimizer_client_rpc.h"
#include "client/owner/client_seams.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "client/status_error.h"
#include "common/cancellation.h"
#include "common/hyperparameters.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/served_job.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunServedRanks;

OptimizerClient::Options At(const std::string& coordinator) {
  OptimizerClient::Options options;
  options.coordinator = coordinator;
  return options;
}

// Of this thread's ranks.
OptimizerClient::Options Here() { return At(ScopedClientSeams::Current()->coordinator_address); }

// Slots of the caller.
struct Memory {
  explicit Memory(const OptimizerClient& client) {
    for (const OptimizerClient::Slot& slot : client.slots()) {
      slots.emplace_back(slot.bytes() + 1);  // an address also where there are no bytes
      places.push_back(slots.back().data());
    }
  }
  std::vector<std::vector<char>> slots;
  std::vector<char*> places;
};

void ExpectSame(const OptimizerClient& client, const Memory& memory, const StateDict& dict) {
  for (size_t i = 0; i < client.slots().size(); ++i) {
    const OptimizerClient::Slot& slot = client.slots()[i];
    SCOPED_TRACE(absl::StrCat(slot.parameter, " ", slot.name));
    const auto parameter = dict.state.find(slot.parameter);
    if (parameter == dict.state.end()) {
      // Never updated.
      double count = -1;
      if (slot.name == "step") std::memcpy(&count, memory.places[i], sizeof(count));
      EXPECT_TRUE(slot.name != "step" || count == 0);
      continue;
    }
    const at::Tensor& tensor = parameter->second.at(slot.name).toTensor();
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef(slot.shape));
    if (slot.is_number) {
      double number = 0;
      std::memcpy(&number, memory.places[i], sizeof(number));
      EXPECT_EQ(static_cast<float>(number), tensor.item<float>());
    } else {
      EXPECT_EQ(tensor.nbytes(), slot.bytes());
      EXPECT_EQ(std::memcmp(tensor.const_data_ptr(), memory.places[i], slot.bytes()), 0);
    }
  }
}

TEST(OptimizerClientTest, ReadState_IsWhatTheRanksConsolidate) {
  for (const PartitionPolicy policy :
       {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    SCOPED_TRACE(NameOf(policy));
    ExpectAllOk(RunServedRanks(2, [&](ShardedOptimizerOptions options) {
      options.policy = policy;
      const std::vector<at::Tensor> parameters = {Parameter({3, 40000}, 1), Parameter({7}, 1),
                                                  Parameter({0}, 1)};
      ShardedOptimizer optimizer(parameters, RuleOptions("nadam").Set("lr", 0.25), options);
      for (int step = 1; step <= 2; ++step) {
        parameters[0].mutable_grad() = Gradient({3, 40000}, static_cast<float>(step));
        optimizer.step();
        // Of a step that is not made yet, once the last one has been.
        optimizer.param_groups()[0].options().set_lr(0.125 / step);
      }
      optimizer.consolidate_state_dict(0);
      if (options.rank == 0) {
        const auto client = ValueOrThrow(OptimizerClient::Connect(Here()));
        EXPECT_EQ(client->spec().world_size, 2);
        Memory memory(*client);
        OptimizerClient::ReadOptions read;
        std::vector<std::vector<char>> values;
        for (const at::Tensor& parameter : parameters) {
          values.emplace_back(parameter.nbytes() + 1);
          read.parameters.push_back(values.back().data());
        }
        const PulledStep pulled = ValueOrThrow(client->ReadState(memory.places, read));
        EXPECT_EQ(pulled.step, 2);
        EXPECT_EQ(client->spec().rules.at(0).hyperparameters.Number("lr"), 0.25);
        ASSERT_EQ(pulled.hyperparameters.size(), 1u);
        EXPECT_EQ(pulled.hyperparameters[0].Number("lr"), 0.125);
        EXPECT_EQ(pulled.hyperparameters[0].List("betas"), (Numbers{0.9, 0.999}));
        for (size_t p = 0; p < parameters.size(); ++p) {
          const std::string expected = testing::BytesOf(parameters[p]);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), values[p].begin())) << p;
        }
        read.parameters.pop_back();
        EXPECT_EQ(client->ReadState(memory.places, read).status().code(),
                  absl::StatusCode::kInvalidArgument);
        ExpectSame(*client, memory, optimizer.state_dict());
      }
      optimizer.consolidate_state_dict(0);  // the other waits
      optimizer.Close();
    }));
  }
}

// One rank's part of a job whose values of each step are known.
class Stepping {
 public:
  explicit Stepping(ShardedOptimizerOptions options)
      : parameter_(Parameter({400, 5000}, 1)),
        optimizer_({parameter_}, RuleOptions("sgd").Set("lr", 0.25).Set("momentum", 0.5),
                   [&options] {
                     options.policy = PartitionPolicy::kBalanced;
                     return options;
                   }()) {}

  void Step() {
    parameter_.mutable_grad() = Gradient({400, 5000}, 1);
    optimizer_.step();
  }
  // A call without any gradient.
  void Skip() {
    parameter_.mutable_grad() = at::Tensor();
    optimizer_.step();
  }
  StepNumber finished() const { return optimizer_.finished_step(); }
  void Close() { optimizer_.Close(); }

 private:
  at::Tensor parameter_;
  ShardedOptimizer optimizer_;
};

// What every element of the parameter and of its momentum is after so many steps.
struct Element {
  float parameter = 1;
  float momentum = 0;
};
Element After(StepNumber steps, float gradient) {
  Element element;
  for (StepNumber step = 1; step <= steps; ++step) {
    element.momentum = step == 1 ? gradient : 0.5F * element.momentum + gradient;
    element.parameter -= 0.25F * element.momentum;
  }
  return element;
}

// Reads the state again and again while the ranks step; each time it is that of one step.
void ReadWhileTheyStep(const OptimizerClient::Options& options,
                       const std::atomic<StepNumber>& finished) {
  const auto client = ValueOrThrow(OptimizerClient::Connect(options));
  Memory memory(*client);
  std::vector<float> values(size_t{400} * 5000);
  const float gradient = Gradient({1}, 1).item<float>();
  StepNumber before = 0;
  for (int round = 0; round < 5; ++round) {
    OptimizerClient::ReadOptions read;
    read.parameters = {reinterpret_cast<char*>(values.data())};
    std::atomic<int64_t> most{0};
    std::atomic<int64_t> total{0};
    read.progress = [&](int64_t done, int64_t all) {
      total = all;
      int64_t known = most;
      while (known < done && !most.compare_exchange_weak(known, done)) {
      }
    };
    const PulledStep pulled = ValueOrThrow(client->ReadState(memory.places, read));
    EXPECT_GE(pulled.step, before);
    before = pulled.step;
    EXPECT_EQ(most, pulled.bytes);
    EXPECT_EQ(total, pulled.bytes);
    const Element expected = After(pulled.step, gradient);
    EXPECT_TRUE(std::all_of(values.begin(), values.end(),
                            [&](float value) { return value == expected.parameter; }))
        << "step " << pulled.step;
    for (size_t i = 0; i < client->slots().size(); ++i) {
      const OptimizerClient::Slot& slot = client->slots()[i];
      if (slot.is_number) {
        double steps = 0;
        std::memcpy(&steps, memory.places[i], sizeof(steps));
        EXPECT_EQ(steps, pulled.step);
        continue;
      }
      const auto* const momentum = reinterpret_cast<const float*>(memory.places[i]);
      EXPECT_TRUE(std::all_of(momentum, momentum + slot.elements,
                              [&](float value) { return value == expected.momentum; }))
          << "step " << pulled.step;
    }
  }
  EXPECT_GT(finished, 1u) << "they stood still";
}

// Steps until the reader is done. All ranks end with the same step.
void StepMeanwhile(Stepping& rank, std::atomic<StepNumber>& finished,
                   const std::atomic<StepNumber>& last) {
  while (rank.finished() < last) {
    rank.Step();
    finished = rank.finished();
  }
  rank.Close();
}

class ReadWhileSteppingTest : public ::testing::Test {
 protected:
  // The first rank to be there has a reader of its own.
  void Train(const OptimizerClient::Options& reader, const ShardedOptimizerOptions& options) {
    Stepping rank(options);
    rank.Step();
    std::thread reads;
    if (options.rank == 0) {
      reads = std::thread([this, reader] {
        EXPECT_EQ(testing::ErrorOf([&] { ReadWhileTheyStep(reader, finished_); }),
                  absl::OkStatus());
        last_ = finished_ + 5;  // no rank has come so far yet
      });
    }
    StepMeanwhile(rank, finished_, last_);
    if (reads.joinable()) reads.join();
  }

  std::atomic<StepNumber> finished_{0};
  std::atomic<StepNumber> last_{std::numeric_limits<StepNumber>::max()};
};

TEST_F(ReadWhileSteppingTest, EmbeddedRanks_ItIsTheStateOfOneStep) {
  ExpectAllOk(RunServedRanks(
      2, [this](const ShardedOptimizerOptions& options) { Train(Here(), options); }));
}

TEST_F(ReadWhileSteppingTest, AttachedRanks_ItIsTheStateOfOneStep) {
  std::string coordinator;
  ExpectAllOk(testing::RunServedAttached(
      3, [&](const ShardedOptimizerOptions& options) { Train(At(coordinator), options); },
      [&](const testing::ServedJob& served, ShardViewRegistry&) {
        coordinator = served.coordinator_address();
      }));
}

// The others are in that step by then, and wait for the rank's vote.
void ReadBeforeTheNextStep(const OptimizerClient::Options& reader,
                           const ShardedOptimizerOptions& options) {
  Stepping rank(options);
  for (StepNumber step = 1; step <= 2; ++step) {
    rank.Step();
    rank.Skip();
    if (options.rank != 0) continue;
    absl::SleepFor(absl::Milliseconds(50));  // for the others to come to it
    const auto client = ValueOrThrow(OptimizerClient::Connect(reader));
    Memory memory(*client);
    OptimizerClient::ReadOptions read;
    read.timeout = absl::Seconds(20);
    const absl::StatusOr<PulledStep> pulled = client->ReadState(memory.places, read);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_EQ(pulled->step, step);
  }
  rank.Close();
}

// By messages: the others reduce gradients first, and have not voted yet.
TEST(OptimizerClientTest, EmbeddedRankThatReadsBeforeItsNextStep_DoesNotWaitForTheOthers) {
  ExpectAllOk(RunServedRanks(
      3, [](const ShardedOptimizerOptions& options) { ReadBeforeTheNextStep(Here(), options); }));
}

// In one pass: the others have voted.
TEST(OptimizerClientTest, AttachedRankThatReadsBeforeItsNextStep_DoesNotWaitForTheOthers) {
  std::string coordinator;
  ExpectAllOk(testing::RunServedAttached(
      2,
      [&](const ShardedOptimizerOptions& options) {
        ReadBeforeTheNextStep(At(coordinator), options);
      },
      [&](const testing::ServedJob& served, ShardViewRegistry&) {
        coordinator = served.coordinator_address();
      }));
}

TEST(OptimizerClientTest, ReadThatIsCancelled_LeavesNoSnapshotAtTheOwners) {
  std::string coordinator;
  ShardViewRegistry* views = nullptr;
  std::atomic<bool> done{false};
  ExpectAllOk(testing::RunServedAttached(
      2,
      [&](const ShardedOptimizerOptions& options) {
        Stepping rank(options);
        rank.Step();
        if (options.rank == 0) {
          const auto client = ValueOrThrow(OptimizerClient::Connect(At(coordinator)));
          Memory memory(*client);
          Cancellation cancellation;
          OptimizerClient::ReadOptions read;
          read.cancellation = &cancellation;
          read.progress = [&](int64_t, int64_t) {
            cancellation.Cancel(absl::CancelledError("enough"));
          };
          const absl::Status ended = client->ReadState(memory.places, read).status();
          EXPECT_EQ(ended, absl::CancelledError("enough"));
          for (const Rank each : {0, 1}) {
            EXPECT_TRUE(testing::Await([&] {
              const auto view = views->Find({"default", each});
              return view.ok() && (*view)->Describe().snapshot_used_bytes == 0;
            })) << "rank "
                << each;
          }
          EXPECT_EQ(client->ReadState(memory.places, {}).status(), absl::OkStatus());
          done = true;
        }
        EXPECT_TRUE(testing::Await([&] { return done.load(); }));
        rank.Close();
      },
      [&](const testing::ServedJob& served, ShardViewRegistry& its_views) {
        coordinator = served.coordinator_address();
        views = &its_views;
      }));
}

TEST(OptimizerClientTest, AfterAGroupWasAdded_ConnectAnew) {
  ExpectAllOk(RunServedRanks(2, [&](const ShardedOptimizerOptions& options) {
    const at::Tensor first = Parameter({7}, 1);
    const at::Tensor second = Parameter({3}, 1);
    ShardedOptimizer optimizer({first}, RuleOptions("adam").Set("lr", 0.25), options);
    std::unique_ptr<OptimizerClient> before;
    if (options.rank == 0) before = ValueOrThrow(OptimizerClient::Connect(Here()));
    torch::optim::OptimizerParamGroup group(std::vector<at::Tensor>{second});
    optimizer.add_param_group(group);
    optimizer.param_groups()[1].options().set_lr(0.5);
    first.mutable_grad() = Gradient({7}, 1);
    second.mutable_grad() = Gradient({3}, 1);
    optimizer.step();
    if (options.rank == 0) {
      Memory old(*before);
      const absl::Status status = before->ReadState(old.places, {}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.message(), HasSubstr("connect anew"));
      const auto client = ValueOrThrow(OptimizerClient::Connect(Here()));
      Memory memory(*client);
      EXPECT_EQ(memory.slots.size(), old.slots.size() * 2);
      const PulledStep pulled = ValueOrThrow(client->ReadState(memory.places, {}));
      ASSERT_EQ(pulled.hyperparameters.size(), 2u);
      EXPECT_EQ(pulled.hyperparameters[0].Number("lr"), 0.25);
      EXPECT_EQ(pulled.hyperparameters[1].Number("lr"), 0.5);
    }
    optimizer.consolidate_state_dict(0);  // the other waits
    optimizer.Close();
  }));
}

TEST(OptimizerClientTest, WhatIsNotThere_IsSaid) {
  ExpectAllOk(RunServedRanks(1, [&](const ShardedOptimizerOptions& options) {
    const std::vector<at::Tensor> parameters = {Parameter({7}, 1)};
    ShardedOptimizer optimizer(parameters, RuleOptions("adam"), options);
    OptimizerClient::Options unknown = Here();
    unknown.optimizer = "critic";
    const absl::Status status = OptimizerClient::Connect(unknown).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"critic\""));
    const auto client = ValueOrThrow(OptimizerClient::Connect(Here()));
    EXPECT_EQ(client->ReadState({}, OptimizerClient::ReadOptions()).status().code(),
              absl::StatusCode::kInvalidArgument);
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
