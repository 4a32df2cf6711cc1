// Ranks as threads of one process.
#include "absl/synchronization/notification.h"
#include "common/dataplane/disconnect_reason.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/errors.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/common/dataplane/conformance_operations.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

class GlooMaker : public PlaneMaker {
 public:
  explicit GlooMaker(GlooPlaneOptions options) : options_(std::move(options)) {
    options_.rendezvous = &rendezvous_;
    options_.deadline = FarDeadline();
  }

  absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) override {
    GlooPlaneOptions options = options_;
    options.rank = rank;
    return CreateGlooPlane(options);
  }

 private:
  testing::FakeRendezvous rendezvous_;
  GlooPlaneOptions options_;
};

PlaneKind Gloo(const std::string& name, const std::string& network, size_t window_bytes) {
  return {name, [=](int world_size) {
            GlooPlaneOptions options;
            options.world_size = world_size;
            options.generation = 7;
            options.network = network;
            options.reduce_window_bytes = window_bytes;
            return std::make_unique<GlooMaker>(options);
          }};
}

// By interface, with memory for all contributions at once; by address, with memory for those of
// one bucket at a time.
const std::vector<PlaneKind>& Kinds() {
  static const auto* const kKinds = new std::vector<PlaneKind>{
      Gloo("Interface", "lo", size_t{64} << 20), Gloo("AddressAndSmallWindow", "127.0.0.1", 1)};
  return *kKinds;
}

// By either connection.
constexpr size_t kShortBytes = 100;
constexpr size_t kLongBytes = size_t{1} << 20;
constexpr absl::Duration kAtOnce = absl::Seconds(10);

// A long message may be on its way when its sender says that it closes. So who waits for one sees
// the end of the connection, once the sender gives up waiting for the others.
TEST(GlooPlane, WaitForWhatAClosedPeerNeverSent_EndsAtOnceWhereItIsShort) {
  for (const size_t bytes : {kShortBytes, kLongBytes}) {
    RunGroup(Kinds()[0], 3, [&](DataPlane& plane) {
      EXPECT_TRUE(Barrier(plane, 0).ok());
      const absl::Time start = Clock::Monotonic().Now();
      if (plane.rank() == 0) {
        const absl::Time deadline =
            bytes == kShortBytes ? FarDeadline() : start + absl::Milliseconds(100);
        EXPECT_FALSE(plane.Close(deadline).ok()) << "others still need it";
      } else {
        std::vector<char> data(bytes);
        const absl::Status ended = WaitFor(
            plane.Publish(Tag(StepPhase::kPublish), kHost, 0, AllRanks(plane), data.data(), bytes));
        EXPECT_TRUE(HasClosed(ended)) << ended;
        EXPECT_EQ(errors::RanksOf(ended), std::vector<Rank>{0}) << ended;
      }
      EXPECT_LT(Clock::Monotonic().Now() - start, kAtOnce) << bytes << " bytes";
    });
  }
}

TEST(GlooPlane, WhatWasSentBeforeARankClosed_Arrives) {
  absl::Notification others_have_ended;
  RunGroup(Kinds()[0], 3, [&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    // Rank 0 closes, rank 1 waits for it in vain, and rank 2 takes its time.
    std::vector<std::unique_ptr<Ticket>> tickets;
    const std::vector<size_t> sizes = {kLongBytes, kShortBytes};
    std::vector<std::vector<char>> received;
    for (const Rank owner : {0, 1}) {
      for (const size_t bytes : sizes) {
        received.emplace_back(bytes, static_cast<char>(plane.rank()));
        auto ticket = plane.Publish(Tag(StepPhase::kPublish, static_cast<int32_t>(bytes)), kHost,
                                    owner, AllRanks(plane), received.back().data(), bytes);
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        tickets.push_back(*std::move(ticket));
      }
    }
    if (plane.rank() == 2) others_have_ended.WaitForNotification();
    for (const auto& ticket : tickets) {
      const absl::Status status = ticket->Wait(FarDeadline());
      EXPECT_TRUE(status.ok()) << "rank " << plane.rank() << ": " << status;
    }
    for (size_t i = 0; i < received.size(); ++i) {
      EXPECT_EQ(received[i], std::vector<char>(received[i].size(), static_cast<char>(i / 2)));
    }
    if (plane.rank() == 0) {
      EXPECT_FALSE(plane.Close(FarDeadline()).ok());
    } else {
      const absl::Status gone = Barrier(plane, 1);
      EXPECT_TRUE(HasClosed(gone)) << gone;
      EXPECT_EQ(errors::RanksOf(gone), std::vector<Rank>{0}) << gone;
    }
    if (plane.rank() == 1) others_have_ended.Notify();
  });
}

INSTANTIATE_TEST_SUITE_P(Gloo, DataPlaneConformance, CasesOf(Kinds(), 1, 4), CaseName);
INSTANTIATE_TEST_SUITE_P(Gloo, DataPlaneWithPeers, CasesOf(Kinds(), 2, 4), CaseName);

}  // namespace
}  // namespace optshard
