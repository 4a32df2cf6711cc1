#include "common/rpc/kept_channels_rpc.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"

namespace optshard {
namespace {

class KeptChannelsTest : public ::testing::Test {
 protected:
  static ListeningServer Listen(const std::string& address = "127.0.0.1:0") {
    return StartServer(address, {}).value();
  }
  static std::string AddressOf(const ListeningServer& server) {
    return absl::StrCat("127.0.0.1:", server.port);
  }
  static void Connect(grpc::Channel& channel) {
    EXPECT_TRUE(channel.WaitForConnected(DeadlineAfter(absl::Seconds(10))));
  }
};

TEST_F(KeptChannelsTest, ItStandsConnected_TheNextCallHasIt) {
  const ListeningServer server = Listen();
  KeptChannels channels(1);
  const std::shared_ptr<grpc::Channel> first = channels.To(AddressOf(server));
  EXPECT_NE(first, channels.To(AddressOf(server))) << "was not connected";
  const std::shared_ptr<grpc::Channel> second = channels.To(AddressOf(server));
  Connect(*second);
  EXPECT_EQ(second, channels.To(AddressOf(server)));
}

TEST_F(KeptChannelsTest, WhoeverListensThereEndsAndComesBack_IsReachedByANewOne) {
  ListeningServer server = Listen();
  const std::string address = AddressOf(server);
  KeptChannels channels(1);
  const std::shared_ptr<grpc::Channel> first = channels.To(address);
  Connect(*first);
  server.server->Shutdown();
  server.server.reset();
  EXPECT_TRUE(first->WaitForStateChange(GRPC_CHANNEL_READY, DeadlineAfter(absl::Seconds(10))));
  const ListeningServer again = Listen(address);
  const std::shared_ptr<grpc::Channel> second = channels.To(address);
  EXPECT_NE(first, second);
  Connect(*second);
  EXPECT_EQ(second, channels.To(address));
}

TEST_F(KeptChannelsTest, MoreAddressesThanItKeeps_GetChannelsOfTheirOwn) {
  const ListeningServer one = Listen();
  const ListeningServer other = Listen();
  KeptChannels channels(1);
  const std::shared_ptr<grpc::Channel> kept = channels.To(AddressOf(one));
  Connect(*kept);
  const std::shared_ptr<grpc::Channel> extra = channels.To(AddressOf(other));
  Connect(*extra);
  EXPECT_NE(extra, channels.To(AddressOf(other)));
  EXPECT_EQ(kept, channels.To(AddressOf(one)));
}

TEST_F(KeptChannelsTest, WhoIsKeptHasEnded_LeavesItsPlace) {
  ListeningServer one = Listen();
  const ListeningServer other = Listen();
  KeptChannels channels(1);
  const std::shared_ptr<grpc::Channel> gone = channels.To(AddressOf(one));
  Connect(*gone);
  one.server->Shutdown();
  one.server.reset();
  EXPECT_TRUE(gone->WaitForStateChange(GRPC_CHANNEL_READY, DeadlineAfter(absl::Seconds(10))));
  const std::shared_ptr<grpc::Channel> kept = channels.To(AddressOf(other));
  Connect(*kept);
  EXPECT_EQ(kept, channels.To(AddressOf(other)));
}

}  // namespace
}  // namespace optshard
