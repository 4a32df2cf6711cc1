#include "common/dataplane/gloo/tcp_peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

constexpr int kWorldSize = 3;

class TcpPeers : public ::testing::Test {
 protected:
  GlooPlaneOptions Options(Rank rank, absl::Duration patience) {
    GlooPlaneOptions options;
    options.rank = rank;
    options.world_size = kWorldSize;
    options.generation = 7;
    options.rendezvous = &rendezvous_;
    options.network = "127.0.0.1";
    options.deadline = Clock::Monotonic().Now() + patience;
    return options;
  }

  testing::FakeRendezvous rendezvous_;
};

// Where the rank listens; the secret comes last.
std::string AddressOf(testing::FakeRendezvous& rendezvous, Rank rank) {
  return rendezvous.Get(absl::StrCat("tcp/7/", rank), Clock::Monotonic().Now() + absl::Seconds(20))
      .value();
}

// The first thing that a rank says to rank 0.
std::string GreetingOf(testing::FakeRendezvous& rendezvous, Rank rank) {
  const std::string address = AddressOf(rendezvous, 0);
  const int32_t numbers[] = {rank, kWorldSize};
  return address.substr(address.size() - 2 * sizeof(uint64_t)) +
         std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers));
}

void Say(const UniqueFd& connection, const std::string& bytes) {
  ASSERT_EQ(send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// Waits for the other end to close the connection. It says nothing before.
void ExpectHangUp(const UniqueFd& connection) {
  char byte = 0;
  EXPECT_LE(recv(connection.get(), &byte, 1, 0), 0);
}

// A socket connected to where the rank listens.
UniqueFd ConnectAsStranger(testing::FakeRendezvous& rendezvous, Rank rank) {
  const std::string address = AddressOf(rendezvous, rank);
  sockaddr_in name;
  std::memcpy(&name, address.data(), sizeof(name));
  UniqueFd stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(stranger.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  return stranger;
}

TEST_F(TcpPeers, AllRanksCome_EveryTwoAreConnected) {
  std::vector<std::vector<UniqueFd>> connections(kWorldSize);
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < kWorldSize; ++rank) {
    ranks.emplace_back([&, rank] {
      auto connected = ConnectTcpPeers(Options(rank, absl::Seconds(20)));
      ASSERT_TRUE(connected.ok()) << connected.status();
      connections[rank] = *std::move(connected);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (Rank from = 0; from < kWorldSize; ++from) {
    for (Rank to = 0; to < kWorldSize; ++to) {
      ASSERT_EQ(connections[from][to].valid(), from != to);
      if (from == to) continue;
      const char byte = static_cast<char>(10 * from + to);
      EXPECT_EQ(send(connections[from][to].get(), &byte, 1, MSG_NOSIGNAL), 1);
    }
  }
  for (Rank to = 0; to < kWorldSize; ++to) {
    for (Rank from = 0; from < kWorldSize; ++from) {
      if (from == to) continue;
      char byte = 0;
      EXPECT_EQ(recv(connections[to][from].get(), &byte, 1, 0), 1);
      EXPECT_EQ(byte, 10 * from + to);
    }
  }
}

TEST_F(TcpPeers, SomebodyWithoutTheSecret_IsNotTakenForARank) {
  std::vector<std::thread> ranks;
  ranks.emplace_back([this] {
    const auto connected = ConnectTcpPeers(Options(0, absl::Seconds(20)));
    EXPECT_TRUE(connected.ok()) << connected.status();
  });
  const UniqueFd stranger = ConnectAsStranger(rendezvous_, 0);
  std::string greeting = GreetingOf(rendezvous_, 1);
  greeting[0] ^= 1;
  Say(stranger, greeting);
  ExpectHangUp(stranger);
  for (Rank rank = 1; rank < kWorldSize; ++rank) {
    ranks.emplace_back([this, rank] {
      const auto connected = ConnectTcpPeers(Options(rank, absl::Seconds(20)));
      EXPECT_TRUE(connected.ok()) << connected.status();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(TcpPeers, SlowRank_IsWaitedForWhileOthersComeAndGo) {
  std::vector<UniqueFd> connections;
  std::thread rank0([&] {
    auto connected = ConnectTcpPeers(Options(0, absl::Seconds(20)));
    ASSERT_TRUE(connected.ok()) << connected.status();
    connections = *std::move(connected);
  });
  const UniqueFd slow = ConnectAsStranger(rendezvous_, 0);
  const std::string greeting = GreetingOf(rendezvous_, 1);
  Say(slow, greeting.substr(0, 5));
  // Somebody who comes later is heard meanwhile.
  const UniqueFd stranger = ConnectAsStranger(rendezvous_, 0);
  Say(stranger, std::string(greeting.size(), 'x'));
  ExpectHangUp(stranger);
  const UniqueFd other = ConnectAsStranger(rendezvous_, 0);
  Say(other, GreetingOf(rendezvous_, 2));
  Say(slow, greeting.substr(5));
  rank0.join();
  ASSERT_EQ(connections.size(), 3u);
  for (Rank rank : {1, 2}) {
    const char byte = static_cast<char>(rank);
    EXPECT_EQ(send(connections[rank].get(), &byte, 1, MSG_NOSIGNAL), 1);
    char got = 0;
    EXPECT_EQ(recv((rank == 1 ? slow : other).get(), &got, 1, 0), 1);
    EXPECT_EQ(got, byte);
  }
}

TEST_F(TcpPeers, ManySilentStrangers_DoNotUseUpTheDescriptors) {
  std::thread rank0([this] {
    const auto connected = ConnectTcpPeers(Options(0, absl::Seconds(60)));
    EXPECT_TRUE(errors::IsPeerLost(connected.status())) << connected.status();
  });
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < kWorldSize + 16; ++i) {
    strangers.push_back(ConnectAsStranger(rendezvous_, 0));
  }
  const UniqueFd one_more = ConnectAsStranger(rendezvous_, 0);
  ExpectHangUp(strangers[0]);
  char byte = 0;
  EXPECT_EQ(recv(strangers[1].get(), &byte, 1, MSG_DONTWAIT), -1) << "it may speak yet";
  rendezvous_.Fail(errors::PeerLost(2, "the test is over"));
  rank0.join();
}

TEST_F(TcpPeers, RankThatGreetsTwice_IsTakenOnce) {
  std::thread rank0([this] {
    const auto connected = ConnectTcpPeers(Options(0, absl::Seconds(60)));
    EXPECT_TRUE(errors::IsPeerLost(connected.status())) << connected.status();
  });
  const UniqueFd first = ConnectAsStranger(rendezvous_, 0);
  Say(first, GreetingOf(rendezvous_, 1));
  const UniqueFd second = ConnectAsStranger(rendezvous_, 0);
  Say(second, GreetingOf(rendezvous_, 1));
  ExpectHangUp(second);
  char byte = 0;
  EXPECT_EQ(recv(first.get(), &byte, 1, MSG_DONTWAIT), -1) << "it is rank 1";
  rendezvous_.Fail(errors::PeerLost(2, "the test is over"));
  rank0.join();
}

TEST_F(TcpPeers, HigherRanksDoNotCome_AreNamedAtTheDeadline) {
  const absl::Status status = ConnectTcpPeers(Options(0, absl::Milliseconds(20))).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), (std::vector<Rank>{1, 2}));
}

TEST_F(TcpPeers, GroupFailsWhileHigherRanksAreAwaited_EndsTheWait) {
  absl::Status status;
  const absl::Time start = Clock::Monotonic().Now();
  std::thread rank([&] { status = ConnectTcpPeers(Options(0, absl::Seconds(60))).status(); });
  // It listens; ranks 1 and 2 will never come.
  ConnectAsStranger(rendezvous_, 0);
  rendezvous_.Fail(errors::PeerLost(2, "it has no such network"));
  rank.join();
  EXPECT_TRUE(errors::IsPeerLost(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{2});
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(30));
}

TEST_F(TcpPeers, LowerRankDoesNotCome_IsNamedAtTheDeadline) {
  const absl::Status status = ConnectTcpPeers(Options(2, absl::Milliseconds(20))).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{0});
}

TEST_F(TcpPeers, RankIsGoneAgain_IsLost) {
  EXPECT_FALSE(ConnectTcpPeers(Options(0, absl::ZeroDuration())).ok());
  const absl::Status status = ConnectTcpPeers(Options(1, absl::Seconds(20))).status();
  EXPECT_TRUE(errors::IsPeerLost(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{0});
}

// To where no connection leads, as where a link is down: the kernel refuses a multicast address.
class TcpPeersUnreachable : public TcpPeers {
 protected:
  TcpPeersUnreachable() {
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    inet_pton(AF_INET, "224.0.0.1", &name.sin_addr);
    std::string address(reinterpret_cast<const char*>(&name), sizeof(name));
    EXPECT_TRUE(rendezvous_.Put("tcp/7/0", address.append(2 * sizeof(uint64_t), 's')).ok());
  }
};

TEST_F(TcpPeersUnreachable, AllTheTime_IsNamedAtTheDeadlineWithTheReason) {
  const absl::Status status = ConnectTcpPeers(Options(1, absl::Milliseconds(20))).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{0});
  EXPECT_NE(status.message().find("Network is unreachable"), absl::string_view::npos) << status;
}

TEST_F(TcpPeersUnreachable, TheGroupFails_EndsTheWait) {
  absl::Status status;
  const absl::Time start = Clock::Monotonic().Now();
  std::thread rank([&] { status = ConnectTcpPeers(Options(1, absl::Seconds(60))).status(); });
  AddressOf(rendezvous_, 1);  // it listens, and connects
  rendezvous_.Fail(errors::PeerLost(2, "its lease ran out"));
  rank.join();
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{2}) << status;
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(30));
}

TEST_F(TcpPeers, NoSuchNetwork_IsRefusedByName) {
  GlooPlaneOptions options = Options(0, absl::Seconds(20));
  options.network = "no-such-interface";
  const absl::Status status = ConnectTcpPeers(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("\"no-such-interface\""), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace optshard
