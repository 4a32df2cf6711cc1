#include "server/shard/saving/shard_save.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "common/new_thread.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/model_export.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/named_directory.h"
#include "server/checkpoint/owner_writer.h"
#include "server/shard/saving/snapshot_state.h"
#include "server/shard/snapshot/prepared_snapshot.h"
#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(10);
constexpr absl::Duration kBetweenReports = absl::Seconds(1);  // of one that waits for a writer
// In which trainers are told that all snapshots are open, which they wait for. Copying that began
// at once would keep the CPUs from those who tell them, for a time slice of 3 ms.
constexpr absl::Duration kAnswersFirst = absl::Milliseconds(4);

// The disk is the trainers' first. Where the system does not know priorities, writing goes on
// without.
class IdleInputOutput {
 public:
  IdleInputOutput() : before_(syscall(SYS_ioprio_get, kThread, 0)) { Set(kIdle); }
  ~IdleInputOutput() {
    if (before_ >= 0) Set(before_);
  }
  IdleInputOutput(const IdleInputOutput&) = delete;
  IdleInputOutput& operator=(const IdleInputOutput&) = delete;

 private:
  static constexpr int kThread = 1;          // IOPRIO_WHO_PROCESS; 0 is the calling thread
  static constexpr int64_t kIdle = 3 << 13;  // IOPRIO_CLASS_IDLE

  static void Set(int64_t priority) { syscall(SYS_ioprio_set, kThread, 0, priority); }

  const int64_t before_;
};

// Whoever computes on the CPU on which the thread wakes up keeps it for now: at the end of a step,
// which wakes all that has given way to it, that is a trainer.
void WakeWithoutPushing() {
  const sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH, &none);
}

// So are the CPUs, of which checksums and the page cache's copies take much. For good: a thread may
// not raise its own priority.
void YieldToTrainers() {
  constexpr int kNice = 10;  // a tenth of a trainer's share, where both want all
  WakeWithoutPushing();
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace

// Copies what the snapshot keeps. It begins before a writer is free: steps do not wait for one. The
// thread has the trainer's priority, because a step waits for whoever copies the chunk that it is
// about to write. Where there can be no thread, steps copy what they write. The end closes the
// snapshot.
class ShardSave::CopyingAhead {
 public:
  CopyingAhead(ShardSnapshot& snapshot, const Options& options, const LogContext& context)
      : snapshot_(snapshot) {
    absl::StatusOr<std::thread> thread = StartThread(options.start_thread, [&snapshot] {
      WakeWithoutPushing();
      absl::SleepFor(kAnswersFirst);
      snapshot.CopyAhead();
    });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      Log(LogLevel::kWarning, context,
          "cannot copy its state for a checkpoint in the background, so steps will: %s",
          thread.status().message());
    }
  }
  ~CopyingAhead() {
    snapshot_.Close();
    if (thread_.joinable()) thread_.join();
  }
  CopyingAhead(const CopyingAhead&) = delete;
  CopyingAhead& operator=(const CopyingAhead&) = delete;

 private:
  ShardSnapshot& snapshot_;
  std::thread thread_;
};

ShardSave::ShardSave(Options options) : options_(std::move(options)) {}

ShardSave::~ShardSave() {
  if (snapshots_ != nullptr) snapshots_->Forget(shard_.snapshot);
}

absl::Status ShardSave::Prepare(const Shard& shard) {
  shard_ = shard;
  {
    const absl::StatusOr<ShardViewRegistry::Use> view = options_.views->Find(shard.selector);
    if (!view.ok()) return view.status();
    const MemberId member = (*view)->Describe().member;
    if (!shard.job.empty() && shard.job != member.job) {
      return absl::NotFoundError(
          absl::StrFormat("rank %d of job \"%s\" is served here, not of "
                          "\"%s\"",
                          member.rank, member.job, shard.job));
    }
    rank_ = member.rank;
    auto description = (*view)->DescribeCheckpoint(shard.is_model);
    if (!description.ok()) return description.status();
    description_ = *std::move(description);
    auto snapshots = (*view)->agreed_snapshots();
    if (!snapshots.ok()) return snapshots.status();
    snapshots_ = *std::move(snapshots);
  }
  SnapshotContents contents;
  contents.parameters = true;
  contents.parameters_later = true;
  // A model has no state: steps may write that.
  contents.state = !shard.is_model;
  contents.keep_copies = !shard.is_model;
  contents.blob = !shard.is_model;
  const absl::Time deadline = absl::Now() + options_.memory_patience;
  while (true) {
    // The destructor forgets it, whatever happens.
    absl::Status prepared =
        snapshots_->Prepare(shard.snapshot, contents, SnapshotLife::kUntilForgotten, shard.at_step);
    if (!absl::IsResourceExhausted(prepared) || absl::Now() >= deadline) return prepared;
    if (options_.cancellation->WaitFor(kPause)) return options_.cancellation->reason();
  }
}

absl::StatusOr<SnapshotMoment> ShardSave::Open(absl::Duration patience) {
  absl::StatusOr<SnapshotMoment> opened;
  {
    const Cancellation::Callback forget(options_.cancellation,
                                        [this] { snapshots_->Forget(shard_.snapshot); });
    opened = snapshots_->Open(shard_.snapshot, patience);
  }
  absl::Status cancelled = options_.cancellation->reason();
  if (!cancelled.ok()) return cancelled;
  if (opened.ok() && opened->generation != description_.generation) {
    return absl::AbortedError(absl::StrFormat(
        "rank %d has got param groups since it prepared the snapshot; ask all owners for another "
        "one",
        rank_));
  }
  if (!opened.ok()) return opened;
  absl::StatusOr<std::unique_ptr<ShardSnapshot>> taken =
      snapshots_->Take(shard_.snapshot, absl::ZeroDuration());
  if (!taken.ok()) return taken.status();
  snapshot_ = *std::move(taken);
  return opened;
}

void ShardSave::OpenedElsewhere(const SnapshotMoment& moment) {
  snapshots_->OpenedElsewhere(shard_.snapshot, moment);
}

absl::Status ShardSave::Copy() {
  // First: what a trainer writes to them meanwhile ends the save.
  absl::Status kept = snapshot_->KeepParameters();
  if (!kept.ok() || shard_.is_model) return kept;
  copying_ = std::make_unique<CopyingAhead>(*snapshot_, options_, MakeLogContext());
  return absl::OkStatus();
}

absl::StatusOr<ShardSave::Written> ShardSave::Write(
    const std::string& directory, const std::string& name,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  absl::Status named = CheckNamedDirectory(directory);
  if (!named.ok()) return named;
  if (!ParseCheckpointName(name)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the name of %d bytes is not that of a checkpoint, such as %s", name.size(),
                        CheckpointNameText({1000, 0})));
  }
  auto state = OwnerStateOf(*snapshot_, description_, rank_);
  if (!state.ok()) return state.status();
  const absl::Span<const Hyperparameters> hyperparameters = snapshot_->hyperparameters();
  if (hyperparameters.size() != description_.groups.size()) {
    return absl::AbortedError(absl::StrFormat(
        "rank %d was getting param groups when the snapshot was prepared (%d and %d); save again",
        rank_, hyperparameters.size(), description_.groups.size()));
  }
  for (size_t group = 0; group < hyperparameters.size(); ++group) {
    description_.groups[group].hyperparameters = hyperparameters[group];
  }
  Written written;
  absl::Status status = WriteTo(
      directory, name, progress, [&](Directory& checkpoint, const OwnerWriteOptions& options) {
        auto part = WriteOwnerFile(checkpoint, description_.parameters, *state, options);
        if (!part.ok()) return part.status();
        written.part = *std::move(part);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  if (rank_ == 0) written.description = std::move(description_);
  return written;
}

absl::StatusOr<int64_t> ShardSave::WriteModel(
    const ModelPlace& place, const std::function<void(int64_t done, int64_t all)>& progress) {
  absl::Status named = CheckNamedDirectory(place.directory);
  if (!named.ok()) return named;
  if (!IsUnfinishedModelName(place.name)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the name of %d bytes is not that of an unfinished model", place.name.size()));
  }
  const auto layout = LayOutModel(ModelTensorsOf(description_.parameters), place.shard_bytes);
  if (!layout.ok()) return layout.status();
  if (layout->checksum() != place.layout_checksum) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d and the coordinator lay out the model's %d tensors otherwise: run the same "
        "version of both",
        rank_, layout->places.size()));
  }
  auto state = OwnerStateOf(*snapshot_, description_, rank_);
  if (!state.ok()) return state.status();
  const std::vector<OwnerSlice> slices =
      ModelSlicesOf(description_.parameters, std::move(state->slices));
  int64_t bytes = 0;
  absl::Status status = WriteTo(place.directory, place.name, progress,
                                [&](Directory& model, const OwnerWriteOptions& options) {
                                  const auto written =
                                      WriteModelShare(model, *layout, slices, options);
                                  if (!written.ok()) return written.status();
                                  bytes = *written;
                                  return absl::OkStatus();
                                });
  if (!status.ok()) return status;
  return bytes;
}

absl::Status ShardSave::WriteTo(const std::string& directory, const std::string& name,
                                const std::function<void(int64_t done, int64_t all)>& progress,
                                const Writing& write) {
  const auto root = options_.files->OpenDirectory(directory);
  if (!root.ok()) return root.status();
  const auto within = (*root)->OpenDirectory(name);
  if (!within.ok()) return within.status();
  const auto writer = options_.writers->Take(*options_.cancellation, kBetweenReports, [&] {
    snapshot_->SettleParameters();
    progress(0, 0);
  });
  if (!writer.ok()) return writer.status();
  const IdleInputOutput idle;
  YieldToTrainers();
  int64_t bytes = 0;
  OwnerWriteOptions options;
  options.cancellation = options_.cancellation;
  GivingWay giving_way(snapshot_->steps());
  options.progress = [&](int64_t done, int64_t all) {
    bytes = done;
    progress(done, all);
    snapshot_->SettleParameters();
    giving_way.Wait();
  };
  absl::Status whole = write(**within, options);
  // Once more: a write that had begun while they were copied has ended by now.
  whole.Update(snapshot_->KeepParameters());
  if (!whole.ok()) {
    Log(LogLevel::kWarning, MakeLogContext(), "has not written its part of %s/%s: %s", directory,
        name, whole.ToString());
    return whole;
  }
  copying_.reset();  // nothing more is read
  Log(LogLevel::kInfo, MakeLogContext(), "wrote %d bytes to %s/%s", bytes, directory, name);
  return absl::OkStatus();
}

LogContext ShardSave::MakeLogContext() const {
  LogContext context;
  context.role = "owner";
  context.job = description_.job;
  context.rank = rank_;
  context.generation = snapshot_->generation();
  context.step = snapshot_->step();
  return context;
}

}  // namespace optshard
