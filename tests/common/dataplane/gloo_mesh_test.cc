// What becomes of callers' memory when the mesh breaks, and which ends are clean, over a wire that
// is a fake.
#include "common/dataplane/gloo/gloo_mesh.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/dataplane/disconnect_reason.h"
#include "common/dataplane/gloo/connect_wire.h"
#include "common/dataplane/gloo/small_messages.h"
#include "common/dataplane/rendezvous.h"
#include "common/errors.h"
#include "common/link/process_stat.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

// A message that never arrives.
class FakeTransfer : public Transfer {
 public:
  Outcome Wait(absl::Duration timeout, std::string*) override {
    if (!aborted_.WaitForNotificationWithTimeout(timeout)) return Outcome::kTimedOut;
    return Outcome::kAborted;
  }
  void Abort() override {
    if (!aborted_.HasBeenNotified()) aborted_.Notify();
  }

 private:
  absl::Notification aborted_;
};

// Connections of which a cut takes as long as the test likes.
class FakeWire : public GlooWire {
 public:
  struct Control {
    std::function<void()> during_cut;
    std::atomic<bool> is_cut{false};
    std::atomic<bool> is_finished{false};
    bool connects = true;  // else Connect waits for the cut
  };

  explicit FakeWire(Control* control) : control_(*control) {}

  absl::StatusOr<std::string> Listen(Rank) override { return std::string("address"); }
  absl::Status Connect(Rank, const std::string&) override {
    if (control_.connects) return absl::OkStatus();
    cut_.WaitForNotificationWithTimeout(absl::Seconds(20));
    return absl::UnavailableError("it takes too long");
  }
  absl::StatusOr<std::unique_ptr<Transfer>> Send(Rank, uint64_t, const void*, size_t) override {
    return std::unique_ptr<Transfer>(std::make_unique<FakeTransfer>());
  }
  absl::StatusOr<std::unique_ptr<Transfer>> Receive(Rank, uint64_t, void*, size_t) override {
    return std::unique_ptr<Transfer>(std::make_unique<FakeTransfer>());
  }
  void Finish() override { control_.is_finished = true; }
  void Cut() override {
    if (control_.during_cut) control_.during_cut();
    if (!control_.is_cut.exchange(true)) cut_.Notify();
  }

 private:
  Control& control_;
  absl::Notification cut_;
};

// The address that rank 1 tells rank 0, as it travels.
std::string AddressMessage(const WireAddress& address) {
  const struct {
    uint32_t magic = 0x6f707473;
    uint32_t bytes = sizeof(WireAddress);
    uint64_t slot = WireAddress::kSlot;
  } header;
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
         std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

// The mesh of rank 0 of two. `peers_end` becomes rank 1's end of the connection for short messages,
// on which rank 1 has sent `address`.
absl::StatusOr<std::unique_ptr<GlooMesh>> MeshOfRank0(
    FakeWire::Control* wire, UniqueFd* peers_end, absl::Time deadline = absl::InfiniteFuture(),
    const std::string& address = AddressMessage(WireAddress{7, "address"}),
    Rendezvous* rendezvous = nullptr) {
  GlooPlaneOptions options;
  options.rendezvous = rendezvous;
  options.rank = 0;
  options.world_size = 2;
  options.deadline = deadline;
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::vector<UniqueFd> connections(2);
  connections[1] = UniqueFd(ends[0]);
  *peers_end = UniqueFd(ends[1]);
  EXPECT_EQ(send(ends[1], address.data(), address.size(), 0), static_cast<ssize_t>(address.size()));
  return GlooMesh::ConnectOver(std::make_unique<FakeWire>(wire), std::move(connections), options);
}

class GlooMeshThatBreaks : public ::testing::Test {
 protected:
  GlooMeshThatBreaks() { mesh_ = MeshOfRank0(&wire_, &peers_end_).value(); }

  // Breaks the mesh on another thread, and calls `call` on a third one while the connections are
  // being cut. Whether they had been cut when `call` returned its error.
  bool IsCutWhenItFails(const std::function<absl::Status()>& call) {
    bool was_cut = false;
    std::thread caller;
    std::atomic<pid_t> thread{0};
    std::atomic<bool> returned{false};
    wire_.during_cut = [&] {
      caller = std::thread([&, this] {
        thread = static_cast<pid_t>(syscall(SYS_gettid));
        EXPECT_TRUE(errors::IsPeerLost(call()));
        was_cut = wire_.is_cut;
        returned = true;
      });
      // Until it has returned, or waits for this cut.
      while (!returned) {
        const pid_t id = thread;
        if (id != 0 && StatOfProcess(id).value_or(ProcessStat()).state == 'S') break;
        std::this_thread::yield();
      }
    };
    std::thread breaker([this] { mesh_->Break(errors::PeerLost(1, "the test says so")); });
    breaker.join();
    caller.join();
    return was_cut;
  }

  UniqueFd peers_end_;
  FakeWire::Control wire_;
  std::unique_ptr<GlooMesh> mesh_;
  GlooMesh::Messages messages_;
  char data_[8] = {};
};

TEST_F(GlooMeshThatBreaks, Status_WhileTheConnectionsAreCut_ReturnsAfterwards) {
  EXPECT_TRUE(IsCutWhenItFails([this] { return mesh_->status(); }));
}

TEST_F(GlooMeshThatBreaks, Send_WhileTheConnectionsAreCut_ReturnsAfterwards) {
  EXPECT_TRUE(
      IsCutWhenItFails([this] { return mesh_->Send(1, 5, data_, sizeof(data_), &messages_); }));
}

TEST_F(GlooMeshThatBreaks, WaitForNothing_WhileTheConnectionsAreCut_ReturnsAfterwards) {
  EXPECT_TRUE(IsCutWhenItFails([this] {
    return mesh_->Wait(&messages_, absl::InfiniteFuture(), [] { return std::string("a wait"); });
  }));
}

TEST_F(GlooMeshThatBreaks, Wait_WhileTheConnectionsAreCut_ReturnsAfterwards) {
  ASSERT_TRUE(mesh_->Receive(1, 5, data_, sizeof(data_), &messages_).ok());
  EXPECT_TRUE(IsCutWhenItFails([this] {
    return mesh_->Wait(&messages_, absl::InfiniteFuture(), [] { return std::string("a wait"); });
  }));
}

TEST_F(GlooMeshThatBreaks, Close_WhileTheConnectionsAreCut_ReturnsAfterwards) {
  EXPECT_TRUE(IsCutWhenItFails([this] { return mesh_->Close(absl::InfiniteFuture()); }));
}

TEST(GlooMesh, PeerThatTellsNoAddress_IsLateAtTheDeadline) {
  FakeWire::Control wire;
  UniqueFd peers_end;
  const absl::Time deadline = Clock::Monotonic().Now() + absl::Milliseconds(20);
  const absl::Status status = MeshOfRank0(&wire, &peers_end, deadline, "").status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{1});
}

// The rendezvous of a group that has failed.
class FailedGroup : public Rendezvous {
 public:
  absl::Status Put(absl::string_view, absl::string_view) override { return Failure(); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Time) override { return Failure(); }

 private:
  static absl::Status Failure() { return errors::PeerLost(1, "its host is gone"); }
};

TEST(GlooMesh, PeerThatTellsNoAddress_IsNotWaitedForWhereTheGroupHasFailed) {
  FakeWire::Control wire;
  UniqueFd peers_end;
  FailedGroup rendezvous;
  const absl::Time deadline = Clock::Monotonic().Now() + absl::Seconds(60);
  const absl::Status status = MeshOfRank0(&wire, &peers_end, deadline, "", &rendezvous).status();
  EXPECT_TRUE(errors::IsPeerLost(status)) << status;
  EXPECT_LT(Clock::Monotonic().Now(), deadline - absl::Seconds(30));
}

TEST(GlooMesh, AddressLongerThanItsMessage_IsRefused) {
  FakeWire::Control wire;
  UniqueFd peers_end;
  WireAddress address;
  address.bytes = sizeof address.address + 1;
  const absl::Status status =
      MeshOfRank0(&wire, &peers_end, absl::InfiniteFuture(), AddressMessage(address)).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_NE(status.message().find("509 bytes"), absl::string_view::npos) << status;
}

TEST(GlooMesh, PeerThatDoesNotConnect_IsLateAtTheDeadline) {
  FakeWire::Control wire;
  wire.connects = false;
  UniqueFd peers_end;
  const absl::Time start = Clock::Monotonic().Now();
  const absl::Status status =
      MeshOfRank0(&wire, &peers_end, start + absl::Milliseconds(20)).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{1});
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(10));
}

// Rank 1's end of the connection for short messages.
std::shared_ptr<SmallMessages> PeerAt(UniqueFd end) {
  std::vector<UniqueFd> connections(2);
  connections[0] = std::move(end);
  return SmallMessages::Create(std::move(connections)).value();
}

TEST(GlooMesh, WaitForAPeerThatCloses_EndsAtOnceAndSaysWhy) {
  FakeWire::Control wire;
  UniqueFd peers_end;
  const std::unique_ptr<GlooMesh> mesh = MeshOfRank0(&wire, &peers_end).value();
  const std::shared_ptr<SmallMessages> peer = PeerAt(std::move(peers_end));
  uint64_t reason = 0;
  const auto heard = peer->Receive(0, GlooMesh::kReasonSlot, &reason, sizeof(reason));
  ASSERT_TRUE(heard.ok()) << heard.status();
  const uint64_t closed = DisconnectReason{DisconnectReason::kClosed, -1}.Encode();
  const char before = 7;
  ASSERT_TRUE(peer->Send(0, 5, &before, sizeof(before)).ok());
  ASSERT_TRUE(peer->Send(0, GlooMesh::kReasonSlot, &closed, sizeof(closed)).ok());
  peer->Flush();  // and waits for the others' goodbye: its connections stay open

  const absl::Time start = Clock::Monotonic().Now();
  const absl::Time deadline = start + absl::Seconds(60);
  const auto what = [] { return std::string("a wait"); };
  GlooMesh::Messages messages;
  char data = 0;
  ASSERT_TRUE(mesh->Receive(1, 5, &data, sizeof(data), &messages).ok());
  const absl::Status first = mesh->Wait(&messages, deadline, what);
  EXPECT_TRUE(first.ok()) << "it was sent before: " << first;
  EXPECT_EQ(data, before);
  ASSERT_TRUE(mesh->Receive(1, 5, &data, sizeof(data), &messages).ok());
  const absl::Status second = mesh->Wait(&messages, deadline, what);
  EXPECT_TRUE(HasClosed(second)) << second;
  EXPECT_EQ(errors::RanksOf(second), std::vector<Rank>{1}) << second;
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(10));

  std::string why;
  ASSERT_EQ((*heard)->Wait(absl::Seconds(10), &why), Transfer::Outcome::kDone) << why;
  EXPECT_EQ(DisconnectReason::Decode(reason).kind, DisconnectReason::kClosed);
  EXPECT_EQ(DisconnectReason::Decode(reason).about, 1);
  EXPECT_TRUE(wire.is_finished) << "what was sent before still arrives";
  EXPECT_FALSE(wire.is_cut);
}

// What Close returns on rank 0 when rank 1 disconnects with this reason.
absl::Status CloseAfter(const DisconnectReason& reason) {
  FakeWire::Control wire;
  UniqueFd peers_end;
  const std::unique_ptr<GlooMesh> mesh = MeshOfRank0(&wire, &peers_end).value();
  const std::shared_ptr<SmallMessages> peer = PeerAt(std::move(peers_end));
  const uint64_t encoded = reason.Encode();
  const auto sent = peer->Send(0, GlooMesh::kReasonSlot, &encoded, sizeof(encoded));
  EXPECT_TRUE(sent.ok()) << sent.status();
  peer->Flush();
  return mesh->Close(Clock::Monotonic().Now() + absl::Seconds(20));
}

TEST(GlooMesh, CloseWhilePeerCloses_IsClean) {
  const absl::Status status = CloseAfter({DisconnectReason::kClosed, -1});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(GlooMesh, CloseWhilePeerGivesUp_NamesIt) {
  for (const DisconnectReason& reason : {DisconnectReason{DisconnectReason::kNone, -1},
                                         DisconnectReason{DisconnectReason::kOther, -1},
                                         DisconnectReason{DisconnectReason::kClosed, 0},
                                         DisconnectReason{DisconnectReason::kPeerLost, 0}}) {
    const absl::Status status = CloseAfter(reason);
    EXPECT_TRUE(errors::IsPeerLost(status)) << reason.kind << ": " << status;
    EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{1}) << reason.kind;
  }
}

TEST(GlooMesh, CloseAfterPeerWaitedInVain_NamesItself) {
  const absl::Status status = CloseAfter({DisconnectReason::kPeerTimedOut, 0});
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{0});
}

}  // namespace
}  // namespace optshard
