// optshard-server as a program: how it is started, looked at and ended.
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "tests/server/node/node_rig.h"
#include "tests/server/shard/engine/test_replica.h"
#include "tests/testing/command.h"
#include "tests/testing/mini_cluster.h"

namespace optshard {
namespace {

using testing::BitDifference;
using testing::Command;
using ::testing::ElementsAre;
using testing::ExpectedParameters;
using ::testing::HasSubstr;
using testing::MiniCluster;
using testing::NodeTrainer;

constexpr char kServer[] = "server/node/optshard-server";
constexpr char kProbe[] = "/grpc.health.v1.Health/Check";
constexpr absl::Duration kTimeout = absl::Seconds(30);

absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

// Whether grpc.health.v1.Health says SERVING. Its messages are one enum each way, so no client of
// generated code is needed: an empty request, and field 1 of the answer.
bool Serves(int port) {
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::internal::RpcMethod method(kProbe, nullptr, grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ByteBuffer request;
  grpc::Slice nothing;
  request = grpc::ByteBuffer(&nothing, 1);
  grpc::ByteBuffer response;
  const grpc::Status called = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, request, &response);
  if (!called.ok()) return false;
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes == std::string("\x08\x01", 2);
}

class ShardServer {
 public:
  ShardServer(const std::string& coordinator, const std::string& ranks,
              const std::vector<std::string>& more = {}) {
    EXPECT_NE(mkdtemp(folder_), nullptr);
    std::vector<std::string> command = {Command::Runfile(kServer),      "--node-ranks=" + ranks,
                                        "--coordinator=" + coordinator, "--socket=" + socket(),
                                        "--memory-limit=1GiB",          "--job=test",
                                        "--port_file=" + port_file()};
    command.insert(command.end(), more.begin(), more.end());
    command_ = std::make_unique<Command>(command);
  }
  ~ShardServer() {
    command_.reset();
    for (const std::string& left : {socket(), socket() + ".lock", port_file()}) {
      unlink(left.c_str());
    }
    rmdir(folder_);
  }

  std::string socket() const { return absl::StrCat(folder_, "/socket"); }
  Command& command() { return *command_; }

  // 0 where it does not start.
  int AwaitPort() {
    const absl::Time deadline = In(kTimeout);
    int port = 0;
    while (port == 0 && Clock::Monotonic().Now() < deadline) {
      std::ifstream(port_file()) >> port;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return port;
  }

 private:
  std::string port_file() const { return absl::StrCat(folder_, "/port"); }

  char folder_[32] = "/tmp/optshard-XXXXXX";
  std::unique_ptr<Command> command_;
};

void OnRanks(int count, const std::function<void(Rank)>& work) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < count; ++rank) threads.emplace_back([&work, rank] { work(rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ShardServer_TwoServersOfOneJob_StepTogether, AndEndOnSigterm) {
  MiniCluster::Options cluster_options;
  cluster_options.world_size = 4;
  const auto cluster = MiniCluster::Start(cluster_options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ShardServer first((*cluster)->coordinator_address(), "0-1");
  ShardServer second((*cluster)->coordinator_address(), "2,3");
  const int port = first.AwaitPort();
  ASSERT_NE(port, 0);
  ASSERT_NE(second.AwaitPort(), 0);
  EXPECT_FALSE(Serves(port)) << "nobody is attached";

  std::vector<std::unique_ptr<NodeTrainer>> trainers(4);
  OnRanks(4, [&](Rank rank) {
    AttachedOwner::Options options =
        NodeTrainer::DefaultOptions(rank < 2 ? first.socket() : second.socket(), rank, 4);
    options.job = "test";
    auto started = NodeTrainer::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    trainers[rank] = *std::move(started);
    const absl::Status stepped = trainers[rank]->StepUntil(3);
    ASSERT_TRUE(stepped.ok()) << stepped;
  });
  const std::vector<testing::Values> expected = ExpectedParameters(4, 3);
  for (const auto& trainer : trainers) {
    ASSERT_NE(trainer, nullptr);
    for (size_t p = 0; p < expected.size(); ++p) {
      EXPECT_EQ(BitDifference(expected[p], trainer->Parameter(static_cast<int>(p))), "");
    }
  }
  const absl::Time ready = In(kTimeout);
  while (!Serves(port) && Clock::Monotonic().Now() < ready) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(Serves(port));

  // Each rank can be inspected where the coordinator says: one port for all ranks of a server, and
  // for its health.
  const absl::StatusOr<std::vector<std::string>> owners =
      trainers[0]->link().owner_addresses(kTimeout);
  ASSERT_TRUE(owners.ok()) << owners.status();
  const std::vector<std::string>& addresses = *owners;
  EXPECT_THAT(addresses, ElementsAre(absl::StrCat("127.0.0.1:", port), addresses[0], addresses[3],
                                     absl::StrCat("127.0.0.1:", second.AwaitPort())));
  for (Rank rank = 0; rank < 4; ++rank) {
    const auto stub = v1::ShardOwner::NewStub(
        grpc::CreateChannel(addresses[rank], grpc::InsecureChannelCredentials()));
    v1::ShardDescription description;
    v1::DescribeShardRequest request;
    grpc::ClientContext unnamed_context;
    const grpc::Status unnamed = stub->DescribeShard(&unnamed_context, request, &description);
    EXPECT_EQ(unnamed.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(unnamed.error_message(), HasSubstr(rank < 2 ? "0, 1" : "2, 3"));
    request.set_rank(rank);
    grpc::ClientContext context;
    const grpc::Status called = stub->DescribeShard(&context, request, &description);
    ASSERT_TRUE(called.ok()) << called.error_message();
    EXPECT_EQ(description.rank(), rank);
    EXPECT_EQ(description.progress().finished_step(), 3u);
  }

  first.command().process().Signal(SIGTERM);
  second.command().process().Signal(SIGTERM);
  for (ShardServer* server : {&first, &second}) {
    const absl::StatusOr<int> code = server->command().Wait(absl::Now() + kTimeout);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0) << server->command().output();
    EXPECT_THAT(server->command().output(), HasSubstr("stopped"));
  }
  const absl::Status told = trainers[0]->Step().status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("shutting down"));
}

TEST(ShardServer_BadFlags_AreRefused, NamingThem) {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {Command::Runfile(kServer)};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Command server(command);
    const absl::StatusOr<int> code = server.Wait(absl::Now() + kTimeout);
    EXPECT_TRUE(code.ok()) << code.status();
    EXPECT_NE(code.value_or(0), 0);
    return server.output();
  };
  const std::string coordinator = "--coordinator=127.0.0.1:1";
  EXPECT_THAT(refusal({}), HasSubstr("--node-ranks is missing"));
  EXPECT_THAT(refusal({"--node-ranks=x", coordinator, "--socket=@s"}), HasSubstr("\"x\""));
  EXPECT_THAT(refusal({"--node_ranks=0", coordinator, "--socket=@s", "--memory_limit=much"}),
              HasSubstr("\"much\""));
  EXPECT_THAT(refusal({"--node-ranks=0", coordinator, "--socket=/no/such/folder/s"}),
              HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace optshard
