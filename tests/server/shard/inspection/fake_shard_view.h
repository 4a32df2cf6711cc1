// A shard to look into without an owner behind it.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_INSPECTION_FAKE_SHARD_VIEW_H_
#define OPTSHARD_TESTS_SERVER_SHARD_INSPECTION_FAKE_SHARD_VIEW_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "server/shard/inspection/shard_view.h"

namespace optshard::testing {

// Thread-safe as long as its fields stay as they are.
class FakeShardView final : public ShardView {
 public:
  ShardDescription description;
  std::vector<OwnedSlice> slices;  // by parameter
  std::vector<TimelineSpan> timeline;
  StateFormat slot_format = StateFormat::kFloat32;
  // Called by ReadSlot; by default element i of a parameter has the value i, at step 1.
  std::function<absl::StatusOr<StepNumber>(int64_t offset, absl::Span<double> out)> read =
      [](int64_t offset, absl::Span<double> out) -> absl::StatusOr<StepNumber> {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(offset + i);
    return StepNumber{1};
  };

  // Called when an agreed snapshot is prepared.
  std::function<absl::Status(const SnapshotContents&)> prepare = [](const SnapshotContents&) {
    return absl::OkStatus();
  };

  // Called by OpenSnapshot, and when an agreed one is opened; after an error that is tried again.
  std::function<absl::StatusOr<std::unique_ptr<ShardSnapshot>>(bool keep_copies)> open = [](bool) {
    return absl::UnimplementedError("no snapshots of this one");
  };

  // Called by Activity.
  std::function<RankActivity()> activity = [] { return RankActivity(); };

  ShardDescription Describe() const override { return description; }
  RankActivity Activity() const override { return activity(); }
  std::vector<OwnedSlice> Slices(int64_t first, int64_t count) const override {
    const int64_t size = static_cast<int64_t>(slices.size());
    const int64_t begin = std::min(first, size);
    return {slices.begin() + begin, slices.begin() + std::min(begin + count, size)};
  }
  std::vector<OwnedSlice> SlicesOf(int32_t parameter) const override {
    const auto first = std::lower_bound(
        slices.begin(), slices.end(), parameter,
        [](const OwnedSlice& slice, int32_t wanted) { return slice.parameter < wanted; });
    auto end = first;
    while (end != slices.end() && end->parameter == parameter) ++end;
    return {first, end};
  }
  absl::StatusOr<SlotRead> ReadSlot(int32_t, absl::string_view, int64_t offset_elements,
                                    absl::Span<double> out) const override {
    const absl::StatusOr<StepNumber> step = read(offset_elements, out);
    if (!step.ok()) return step.status();
    return SlotRead{*step, slot_format};
  }
  absl::StatusOr<std::unique_ptr<ShardSnapshot>> OpenSnapshot(bool keep_copies,
                                                              absl::Duration) const override {
    return open(keep_copies);
  }
  absl::StatusOr<std::shared_ptr<AgreedSnapshots>> agreed_snapshots() const override {
    return agreed_;
  }
  absl::StatusOr<CheckpointManifest> DescribeCheckpoint(bool) const override {
    return absl::UnimplementedError("no checkpoints of this one");
  }
  std::vector<TimelineSpan> Timeline() const override { return timeline; }

 private:
  class Prepared final : public PreparedSnapshot {
   public:
    Prepared(const FakeShardView* view, bool keep_copies)
        : view_(*view), keep_copies_(keep_copies) {}
    absl::StatusOr<std::unique_ptr<ShardSnapshot>> TryOpen(const BetweenCalls&) override {
      return view_.open(keep_copies_);
    }

   private:
    const FakeShardView& view_;
    const bool keep_copies_;
  };

  AgreedSnapshots::Options AgreedOptions() const {
    AgreedSnapshots::Options options;
    options.prepare =
        [this](
            const SnapshotContents& contents) -> absl::StatusOr<std::unique_ptr<PreparedSnapshot>> {
      absl::Status prepared = prepare(contents);
      if (!prepared.ok()) return prepared;
      return std::make_unique<Prepared>(this, contents.keep_copies);
    };
    return options;
  }

  const std::shared_ptr<AgreedSnapshots> agreed_ =
      std::make_shared<AgreedSnapshots>(AgreedOptions());
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_INSPECTION_FAKE_SHARD_VIEW_H_
