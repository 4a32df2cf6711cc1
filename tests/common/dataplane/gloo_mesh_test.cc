// What becomes of callers' memory when the mesh breaks, over a wire that is a fake.
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
#include "common/errors.h"
#include "common/link/process_stat.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_rendezvous.h"

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
  };

  explicit FakeWire(Control* control) : control_(*control) {}

  absl::StatusOr<std::string> Listen(Rank) override { return std::string("address"); }
  absl::Status Connect(Rank, const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Transfer>> Send(Rank, uint64_t, const void*, size_t) override {
    return std::unique_ptr<Transfer>(std::make_unique<FakeTransfer>());
  }
  absl::StatusOr<std::unique_ptr<Transfer>> Receive(Rank, uint64_t, void*, size_t) override {
    return std::unique_ptr<Transfer>(std::make_unique<FakeTransfer>());
  }
  void Finish() override { Cut(); }
  void Cut() override {
    if (control_.during_cut) control_.during_cut();
    control_.is_cut = true;
  }

 private:
  Control& control_;
};

class GlooMeshThatBreaks : public ::testing::Test {
 protected:
  GlooMeshThatBreaks() {
    EXPECT_TRUE(rendezvous_.Put("gloo/0/1/for/0", "address").ok());
    GlooPlaneOptions options;
    options.rank = 0;
    options.world_size = 2;
    options.rendezvous = &rendezvous_;
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    std::vector<UniqueFd> connections(2);
    connections[1] = UniqueFd(ends[0]);
    peers_end_ = UniqueFd(ends[1]);
    mesh_ =
        GlooMesh::ConnectOver(std::make_unique<FakeWire>(&wire_), std::move(connections), options)
            .value();
  }

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

  testing::FakeRendezvous rendezvous_;
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

}  // namespace
}  // namespace optshard
