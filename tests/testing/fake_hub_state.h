// What the planes of a FakeHub share: the operations, whose parts the ranks bring one by one, and
// the faults.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_HUB_STATE_H_
#define OPTSHARD_TESTS_TESTING_FAKE_HUB_STATE_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/dataplane/tree_average.h"
#include "common/errors.h"
#include "tests/testing/fake_plane.h"

namespace optshard::testing {

enum class FakeKind { kReduce, kPublish, kAllGather };

// What one rank brings to an operation.
struct FakePart {
  const char* input = nullptr;  // null where the rank gives nothing
  char* output = nullptr;       // null where it gets nothing
  size_t input_checksum = 0;    // kDelayed: of the input at the start
  std::string captured;         // the input's values once read
  bool is_captured = false;
  bool started = false;
  bool delivered = false;  // the outputs are written, or there are none
  bool waited = false;
};

// One operation of all ranks: each rank's n-th.
struct FakeOperation {
  FakeKind kind = FakeKind::kReduce;
  StepTag tag;
  // Of a reduction all of it; else who takes part, and the owner of what is published.
  Reduction ranks;
  DType dtype = DType::kFloat32;
  size_t bytes = 0;  // of one rank's input
  Rank first = -1;   // who started it first, and thereby said what it is
  std::vector<FakePart> parts;
};

inline std::string Describe(const FakeOperation& op) {
  static constexpr const char* kNames[] = {"Reduce", "Publish", "AllGather"};
  return absl::StrCat(kNames[static_cast<int>(op.kind)], "(generation ", op.tag.generation,
                      ", step ", op.tag.step, ", bucket ", op.tag.bucket, ", phase ",
                      static_cast<int>(op.tag.phase), ", owner ", op.ranks.owner, ", members ",
                      absl::StrJoin(op.ranks.members, " "), " in groups of ",
                      absl::StrJoin(op.ranks.group_sizes, " "), ", divided by ", op.ranks.divisor,
                      ", ", op.bytes, " bytes)");
}

inline bool SameOperation(const FakeOperation& a, const FakeOperation& b) {
  return a.kind == b.kind && a.tag.generation == b.tag.generation && a.tag.step == b.tag.step &&
         a.tag.bucket == b.tag.bucket && a.tag.phase == b.tag.phase &&
         a.ranks.owner == b.ranks.owner && a.ranks.members == b.ranks.members &&
         a.ranks.group_sizes == b.ranks.group_sizes && a.ranks.divisor == b.ranks.divisor &&
         a.dtype == b.dtype && a.bytes == b.bytes;
}

inline size_t Checksum(const char* data, size_t bytes) {
  return std::hash<std::string_view>()(std::string_view(data, bytes));
}

inline bool Overlap(const char* a, size_t a_bytes, const char* b, size_t b_bytes) {
  return a != nullptr && b != nullptr && a < b + b_bytes && b < a + a_bytes;
}

// What the hub knows of a rank.
struct FakeMember {
  int64_t started = 0;
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
      : world_size_(options.world_size),
        mode_(options.mode),
        all_ranks_(options.world_size),
        members_(options.world_size) {
    std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  }

  int world_size() const { return world_size_; }
  const std::vector<Rank>& all_ranks() const { return all_ranks_; }

  void ShareReplicas(PeerReplicas replicas) {
    absl::MutexLock lock(&mutex_);
    replicas_ = std::move(replicas);
  }
  const PeerReplicas* replicas() const {
    absl::MutexLock lock(&mutex_);
    return replicas_.has_value() ? &*replicas_ : nullptr;
  }
  bool delayed() const { return mode_ == FakeHub::Mode::kDelayed; }

  // Returns the operation's number.
  absl::StatusOr<int64_t> Start(Rank rank, const FakeOperation& described, const void* input,
                                void* output) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    FakeMember& member = members_[rank];
    const int64_t number = member.started++;
    ApplyFaults(rank, number);
    if (!member.broken.ok()) return member.broken;
    if (member.closing) {
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(described), ": the plane of rank ", rank, " is closed"));
    }
    FakeOperation& op = operations_[number];
    if (op.first < 0) {
      op = described;
      op.first = rank;
      op.parts.resize(members_.size());
    } else if (!SameOperation(op, described)) {
      const absl::Status difference = errors::RanksDisagree(
          {rank}, absl::StrCat("operation ", number, " is ", Describe(op), " on rank ", op.first,
                               " and ", Describe(described), " on rank ", rank));
      for (FakeMember& other : members_) Break(other, difference);
      return difference;
    }
    FakePart& part = op.parts[rank];
    part.started = true;
    if (!op.ranks.Has(rank)) {
      part.delivered = part.waited = true;
      EraseIfFinished(number);
      return number;
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
      const size_t output_bytes = OutputBytes(op);
      if (part.output != nullptr && !Overlap(part.input, op.bytes, part.output, output_bytes)) {
        std::memset(part.output, 0xff, output_bytes);
      }
    }
    return number;
  }

  absl::Status Wait(Rank rank, int64_t number, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    FakeMember& member = members_[rank];
    // A ticket may be finished twice: by its stream and by the host.
    const auto found = operations_.find(number);
    if (found == operations_.end() || found->second.parts[rank].waited) return member.broken;
    FakeOperation& op = found->second;
    if (member.broken.ok()) Capture(op, rank);
    if (member.kill_in_wait_for == number) {
      const auto others_have_waited = [&] {
        mutex_.AssertReaderHeld();
        for (int other = 0; other < world_size(); ++other) {
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
    EraseIfFinished(number);
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
  void EraseIfFinished(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<FakePart>& parts = operations_[number].parts;
    const bool finished =
        std::all_of(parts.begin(), parts.end(), [](const FakePart& part) { return part.waited; });
    if (finished) operations_.erase(number);
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

  static size_t OutputBytes(const FakeOperation& op) {
    return op.kind == FakeKind::kAllGather ? op.bytes * op.parts.size() : op.bytes;
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
      char* to = part.output;
      for (const void* input : inputs) {
        if (op.bytes > 0) std::memcpy(to, input, op.bytes);
        to += op.bytes;
      }
    }
    part.delivered = true;
  }

  const int world_size_;
  absl::optional<PeerReplicas> replicas_ ABSL_GUARDED_BY(mutex_);
  const FakeHub::Mode mode_;
  std::vector<Rank> all_ranks_;
  mutable absl::Mutex mutex_;
  std::vector<FakeMember> members_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, FakeOperation> operations_ ABSL_GUARDED_BY(mutex_);
  bool release_hung_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_HUB_STATE_H_
