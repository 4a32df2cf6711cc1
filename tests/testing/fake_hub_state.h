// What the planes of a FakeHub share: the operations, whose parts the ranks bring one by one, and
// the faults.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_HUB_STATE_H_
#define OPTSHARD_TESTS_TESTING_FAKE_HUB_STATE_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/dataplane/tree_average.h"
#include "common/errors.h"
#include "tests/testing/fake_operation.h"
#include "tests/testing/fake_plane.h"

namespace optshard::testing {

// Which operation of which plane: each rank's n-th there.
struct FakeOperationId {
  int plane = 0;  // of all ranks; else one more than the number of the node
  int64_t number = 0;
  int64_t of_rank = 0;  // the rank's n-th in all of its planes
};

// What the hub knows of a rank.
struct FakeMember {
  int64_t started = 0;                // in all of its planes
  std::map<int, int64_t> started_in;  // by plane
  int64_t published_bytes = 0;
  absl::optional<int64_t> kill_at;
  absl::optional<int64_t> hang_at;
  absl::optional<int64_t> kill_in_wait_for;
  bool hung = false;
  bool closing = false;
  absl::Status broken;  // what every call and wait of this rank returns
};

// Thread-safe.
class FakeHubState {
 public:
  explicit FakeHubState(FakeHub::Options options)
      : world_size_(options.world_size), mode_(options.mode), members_(options.world_size) {
    plane_ranks_.emplace_back(options.world_size);
    std::iota(plane_ranks_[0].begin(), plane_ranks_[0].end(), 0);
    for (std::vector<Rank>& node : options.nodes) {
      std::sort(node.begin(), node.end());
      plane_ranks_.push_back(std::move(node));
    }
  }

  int world_size() const { return world_size_; }
  const std::vector<Rank>& ranks_of(int plane) const { return plane_ranks_[plane]; }
  // Of the rank's node; 0 where there are no nodes.
  int NodePlaneOf(Rank rank) const {
    for (size_t plane = 1; plane < plane_ranks_.size(); ++plane) {
      const std::vector<Rank>& ranks = plane_ranks_[plane];
      if (std::binary_search(ranks.begin(), ranks.end(), rank)) return static_cast<int>(plane);
    }
    return 0;
  }

  void ShareReplicas(PeerReplicas replicas) {
    absl::MutexLock lock(&mutex_);
    replicas_ = std::move(replicas);
  }
  // Where there are nodes, those of one node are reached in its plane.
  const PeerReplicas* replicas(int plane) const {
    absl::MutexLock lock(&mutex_);
    const bool reached = replicas_.has_value() && (plane > 0 || plane_ranks_.size() == 1);
    return reached ? &*replicas_ : nullptr;
  }
  bool delayed() const { return mode_ == FakeHub::Mode::kDelayed; }

  absl::StatusOr<FakeOperationId> Start(Rank rank, int plane, const FakeOperation& described,
                                        const void* input, void* output)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    FakeMember& member = members_[rank];
    FakeOperationId id;
    id.plane = plane;
    id.of_rank = member.started++;
    ApplyFaults(rank, id.of_rank);
    id.number = member.started_in[plane]++;
    if (!member.broken.ok()) return member.broken;
    if (member.closing) {
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(described), ": the plane of rank ", rank, " is closed"));
    }
    FakeOperation& op = operations_[{plane, id.number}];
    if (op.first < 0) {
      op = described;
      op.first = rank;
      op.parts.resize(members_.size());
    } else if (!SameOperation(op, described)) {
      const absl::Status difference = errors::RanksDisagree(
          {rank}, absl::StrCat("operation ", id.number, " is ", Describe(op), " on rank ", op.first,
                               " and ", Describe(described), " on rank ", rank));
      for (FakeMember& other : members_) Break(other, difference);
      return difference;
    }
    FakePart& part = op.parts[rank];
    part.started = true;
    if (!op.ranks.Has(rank)) {
      part.delivered = part.waited = true;
      EraseIfFinished(id);
      return id;
    }
    part.input = static_cast<const char*>(input);
    part.output = static_cast<char*>(output);
    part.delivered = part.output == nullptr;
    if (op.kind == FakeKind::kPublish && op.ranks.owner == rank) {
      member.published_bytes += static_cast<int64_t>(op.bytes);
    }
    if (!delayed()) {
      Capture(op, rank);
      for (int to = 0; to < world_size(); ++to) DeliverIfReady(op, to);
    } else {
      if (part.input != nullptr) part.input_checksum = Checksum(part.input, op.bytes);
      ForEachOutput(op, part, [&](char* to, size_t bytes) {
        if (!Overlap(part.input, op.bytes, to, bytes)) std::memset(to, 0xff, bytes);
      });
    }
    return id;
  }

  absl::Status Wait(Rank rank, const FakeOperationId& id, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    FakeMember& member = members_[rank];
    // A ticket may be finished twice: by its stream and by the host.
    const auto found = operations_.find({id.plane, id.number});
    if (found == operations_.end() || found->second.parts[rank].waited) return member.broken;
    FakeOperation& op = found->second;
    if (member.broken.ok()) Capture(op, rank);
    if (member.kill_in_wait_for == id.of_rank) {
      const auto others_have_waited = [&] {
        mutex_.AssertReaderHeld();
        for (const Rank other : plane_ranks_[id.plane]) {
          if (other != rank && !op.parts[other].waited) return !member.broken.ok();
        }
        return true;
      };
      AwaitUntil(others_have_waited, deadline);
      Kill(rank);
      return member.broken;
    }
    const auto done = [&] {
      mutex_.AssertReaderHeld();
      return !member.broken.ok() || op.parts[rank].delivered || InputsAreThere(op);
    };
    if (!AwaitUntil(done, deadline)) {
      std::vector<Rank> late;
      for (Rank other : Sources(op)) {
        if (!op.parts[other].started) late.push_back(other);
      }
      const absl::Status timed_out = errors::PeersTimedOut(late, Describe(op));
      LoseLocked(rank, timed_out, timed_out);
    }
    if (member.broken.ok()) DeliverIfReady(op, rank);
    if (!member.broken.ok()) return member.broken;
    op.parts[rank].waited = true;
    EraseIfFinished(id);
    return absl::OkStatus();
  }

  // The rank's own calls return `own`, all others' `others`.
  void Lose(Rank rank, const absl::Status& own, const absl::Status& others)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    LoseLocked(rank, own, others);
  }

  absl::Status Close(Rank rank, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    FakeMember& member = members_[rank];
    if (!member.broken.ok()) return member.broken;
    member.closing = true;
    const auto all_closing = [&] {
      mutex_.AssertReaderHeld();
      return !member.broken.ok() || std::all_of(members_.begin(), members_.end(),
                                                [](const FakeMember& m) { return m.closing; });
    };
    if (!AwaitUntil(all_closing, deadline)) {
      std::vector<Rank> late;
      for (int other = 0; other < world_size(); ++other) {
        if (!members_[other].closing) late.push_back(other);
      }
      const absl::Status timed_out = errors::PeersTimedOut(late, "Close of the data plane");
      LoseLocked(rank, timed_out, timed_out);
    }
    return member.broken;
  }

  absl::Status status(Rank rank) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const FakeMember& member = members_[rank];
    if (!member.broken.ok() || !member.closing) return member.broken;
    return absl::FailedPreconditionError(absl::StrCat("the plane of rank ", rank, " is closed"));
  }

  bool Closing(Rank rank) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return members_[rank].closing;
  }

  void SetFault(Rank rank, absl::optional<int64_t> kill_at, absl::optional<int64_t> hang_at)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (kill_at.has_value()) members_[rank].kill_at = kill_at;
    if (hang_at.has_value()) members_[rank].hang_at = hang_at;
  }

  void KillInWaitFor(Rank rank, int64_t operation) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    members_[rank].kill_in_wait_for = operation;
  }

  void ReleaseHung() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    release_hung_ = true;
  }

  bool AwaitHung(Rank rank, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto hung = [&] {
      mutex_.AssertReaderHeld();
      return members_[rank].hung;
    };
    return AwaitUntil(hung, deadline);
  }

  int64_t OperationsStarted(Rank rank) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return members_[rank].started;
  }

  int64_t PublishedBytes(Rank rank) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return members_[rank].published_bytes;
  }

 private:
  void EraseIfFinished(const FakeOperationId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<FakePart>& parts = operations_[{id.plane, id.number}].parts;
    const std::vector<Rank>& ranks = plane_ranks_[id.plane];
    const bool finished =
        std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) { return parts[rank].waited; });
    if (finished) operations_.erase({id.plane, id.number});
  }

  template <typename Predicate>
  bool AwaitUntil(const Predicate& predicate, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return mutex_.AwaitWithTimeout(absl::Condition(&predicate),
                                   deadline - Clock::Monotonic().Now());
  }

  static void Break(FakeMember& member, const absl::Status& reason) {
    if (member.broken.ok()) member.broken = reason;
  }

  void LoseLocked(Rank rank, const absl::Status& own, const absl::Status& others)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!members_[rank].broken.ok()) return;
    for (int member = 0; member < world_size_; ++member) {
      Break(members_[member], member == rank ? own : others);
    }
  }

  void Kill(Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LoseLocked(rank, absl::CancelledError(absl::StrCat("rank ", rank, " was killed by the test")),
               errors::PeerLost(rank, "killed by the test"));
  }

  void ApplyFaults(Rank rank, int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    FakeMember& member = members_[rank];
    if (member.kill_at == number) Kill(rank);
    if (member.hang_at == number) {
      member.hung = true;
      const auto released = [&] {
        mutex_.AssertReaderHeld();
        return release_hung_;
      };
      mutex_.Await(absl::Condition(&released));
      member.hung = false;
      Break(member, absl::CancelledError(absl::StrCat("rank ", rank, " was hung by the test")));
    }
  }

  static std::vector<Rank> Sources(const FakeOperation& op) {
    if (op.kind == FakeKind::kPublish) return {op.ranks.owner};
    return op.ranks.members;
  }

  // Where the outputs of one rank are; of a gather, by source.
  template <typename Visit>
  static void ForEachOutput(const FakeOperation& op, const FakePart& part, const Visit& visit) {
    if (part.output == nullptr) return;
    if (op.kind == FakeKind::kAllGather) {
      for (const Rank source : op.ranks.members) visit(part.output + source * op.bytes, op.bytes);
    } else if (op.kind == FakeKind::kReduce) {
      visit(part.output, op.bytes / SizeOf(op.dtype) * SizeOf(ArithmeticOf(op.dtype)));
    } else {
      visit(part.output, op.bytes);
    }
  }

  // Reads a rank's input, if it has not been read yet.
  void Capture(FakeOperation& op, Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    FakePart& part = op.parts[rank];
    if (part.is_captured || part.input == nullptr) return;
    part.captured.assign(part.input, op.bytes);
    part.is_captured = true;
    if (!delayed() || Checksum(part.captured.data(), op.bytes) == part.input_checksum) return;
    for (FakeMember& member : members_) {
      Break(member, absl::InternalError(absl::StrCat(
                        "rank ", rank, " changed the input of ", Describe(op),
                        " before it waited for the operation: inputs stay unwritten until then")));
    }
  }

  // Whether every input can be read: of a broken rank only what was read before.
  bool InputsAreThere(const FakeOperation& op) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const std::vector<Rank> sources = Sources(op);
    return std::all_of(sources.begin(), sources.end(), [&](Rank source) {
      mutex_.AssertReaderHeld();
      const FakePart& part = op.parts[source];
      return part.is_captured || (part.started && members_[source].broken.ok());
    });
  }

  // Writes a rank's output if all it needs is there.
  void DeliverIfReady(FakeOperation& op, Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    FakePart& part = op.parts[rank];
    if (!part.started || part.delivered || !InputsAreThere(op)) return;
    std::vector<const void*> inputs;
    for (Rank source : Sources(op)) {
      Capture(op, source);
      inputs.push_back(op.parts[source].captured.data());
    }
    if (!members_[rank].broken.ok()) return;
    if (op.kind == FakeKind::kReduce) {
      ReduceGroups(op.ranks.group_sizes, op.ranks.divisor, op.dtype, inputs, 0,
                   static_cast<int64_t>(op.bytes / SizeOf(op.dtype)), part.output);
    } else {
      auto input = inputs.begin();
      ForEachOutput(op, part, [&](char* to, size_t bytes) {
        if (bytes > 0) std::memcpy(to, *input, bytes);
        ++input;
      });
    }
    part.delivered = true;
  }

  const int world_size_;
  absl::optional<PeerReplicas> replicas_ ABSL_GUARDED_BY(mutex_);
  const FakeHub::Mode mode_;
  std::vector<std::vector<Rank>> plane_ranks_;  // by plane, ascending
  mutable absl::Mutex mutex_;
  std::vector<FakeMember> members_ ABSL_GUARDED_BY(mutex_);
  // By plane and number.
  std::map<std::pair<int, int64_t>, FakeOperation> operations_ ABSL_GUARDED_BY(mutex_);
  bool release_hung_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_HUB_STATE_H_
