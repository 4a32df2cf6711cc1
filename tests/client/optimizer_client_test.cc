// A client that is no rank of the job reads its state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/optimizer_client_rpc.h"
#include "client/owner/client_seams.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "client/status_error.h"
#include "common/rpc/server_rpc.h"
#include "server/coordinator/coordinator_service.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/local_coordinator.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunServedRanks;

// The coordinator of this thread's ranks, over gRPC.
class Served {
 public:
  Served()
      : service_(
            &static_cast<LocalCoordinator*>(ScopedClientSeams::Current()->coordinator)->domain()),
        listening_(ValueOrThrow(StartServer("127.0.0.1:0", {&service_}))) {}
  ~Served() { listening_.server->Shutdown(); }

  OptimizerClient::Options options() const {
    OptimizerClient::Options options;
    options.coordinator = absl::StrCat("127.0.0.1:", listening_.port);
    return options;
  }

 private:
  CoordinatorService service_;
  ListeningServer listening_;
};

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
      }
      optimizer.consolidate_state_dict(0);
      if (options.rank == 0) {
        const Served served;
        const auto client = ValueOrThrow(OptimizerClient::Connect(served.options()));
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

TEST(OptimizerClientTest, WhatIsNotThere_IsSaid) {
  ExpectAllOk(RunServedRanks(1, [&](const ShardedOptimizerOptions& options) {
    const std::vector<at::Tensor> parameters = {Parameter({7}, 1)};
    ShardedOptimizer optimizer(parameters, RuleOptions("adam"), options);
    const Served served;
    OptimizerClient::Options unknown = served.options();
    unknown.optimizer = "critic";
    const absl::Status status = OptimizerClient::Connect(unknown).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"critic\""));
    const auto client = ValueOrThrow(OptimizerClient::Connect(served.options()));
    EXPECT_EQ(client->ReadState({}, OptimizerClient::ReadOptions()).status().code(),
              absl::StatusCode::kInvalidArgument);
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
