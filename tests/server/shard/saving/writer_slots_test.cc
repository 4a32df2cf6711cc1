#include "server/shard/saving/writer_slots.h"

#include "common/cancellation.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(WriterSlotsTest, WhoWaits_SaysSoUntilOneIsFreeOrItIsCancelled) {
  WriterSlots slots(1);
  Cancellation cancellation;
  const auto never = [] { ADD_FAILURE() << "one is free"; };
  absl::optional<WriterSlots::Slot> first = *slots.Take(cancellation, absl::Seconds(20), never);
  int waits = 0;
  absl::optional<WriterSlots::Slot> second = *slots.Take(cancellation, absl::Milliseconds(1), [&] {
    if (++waits == 3) first.reset();
  });
  EXPECT_EQ(waits, 3);
  const auto third = slots.Take(cancellation, absl::Milliseconds(1),
                                [&] { cancellation.Cancel(absl::CancelledError("gone")); });
  EXPECT_EQ(third.status(), absl::CancelledError("gone"));
}

}  // namespace
}  // namespace optshard
