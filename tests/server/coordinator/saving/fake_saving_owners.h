// Owners that save a model whose state is known, and fail where a test wants them to.
#ifndef OPTSHARD_TESTS_SERVER_COORDINATOR_SAVING_FAKE_SAVING_OWNERS_H_
#define OPTSHARD_TESTS_SERVER_COORDINATOR_SAVING_FAKE_SAVING_OWNERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "server/checkpoint/model_export.h"
#include "server/checkpoint/model_layout.h"
#include "server/coordinator/saving/saving_owners.h"
#include "tests/server/checkpoint/saved_model.h"

namespace optshard::testing {

enum class SaveCall { kPrepare, kOpen, kWrite };

// Calls back at once, in the caller's thread. Thread-safe, but for its fields.
class FakeSavingOwners final : public SavingOwners {
 public:
  FakeSavingOwners(FileSystem* files, StepNumber step, int world_size = 2)
      : files_(*files), world_size_(world_size), step_(step) {}

  // --- What a test sets before a save.

  // Runs in each call, before anything else: an error is the answer.
  std::function<absl::Status(SaveCall, Rank)> before = [](SaveCall, Rank) {
    return absl::OkStatus();
  };
  absl::optional<SnapshotMoment> moment_of_rank_1;
  Generation present = 1;                   // that all follow
  absl::optional<StepNumber> awaited_step;  // that the last save waited for
  bool connected_for_model = false;
  bool describes = true;
  Rank file_of_rank_1 = 1;
  absl::optional<Generation> followed_now;  // by ModelTensors; absent: `present`
  bool writes_all = true;                   // of a model; otherwise rank 1 writes nothing
  // What rank 1 says first: bytes written, of how many.
  absl::optional<std::pair<int64_t, int64_t>> progress_of_rank_1;
  // Where it is set, it takes the next answer of rank 0 to Open, which does not answer then.
  std::function<void(std::function<void(absl::StatusOr<SnapshotMoment>)>)> keeps_open;
  // What ranks that have not answered Open are told of others.
  std::function<void(Rank, const SnapshotMoment&)> told = [](Rank, const SnapshotMoment&) {};

  void SetStep(StepNumber step) { step_ = step; }
  // From now on the rank does not answer this call before it is cancelled; also within a save.
  void Silence(SaveCall call, Rank rank) {
    absl::MutexLock lock(&mutex_);
    silent_ = {call, rank};
  }
  // From now on all answer; who is silent already stays so.
  void SilenceNobody() {
    absl::MutexLock lock(&mutex_);
    silent_.reset();
  }

  int connects() const {
    absl::MutexLock lock(&mutex_);
    return connects_;
  }
  int cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  // Waits until that many calls are not answered.
  void AwaitSilent(int calls) {
    absl::MutexLock lock(&mutex_);
    awaited_ = calls;
    mutex_.Await(absl::Condition(this, &FakeSavingOwners::HasSilent));
  }
  // As the last call of a rank that was silent.
  void AnswerAll(const absl::Status& status) {
    std::map<OwnerSave*, std::function<void(absl::Status)>> waiting;
    {
      absl::MutexLock lock(&mutex_);
      waiting.swap(waiting_);
    }
    for (auto& each : waiting) each.second(status);
  }

  absl::StatusOr<std::vector<std::unique_ptr<OwnerSave>>> Connect(
      const std::string& optimizer, absl::optional<StepNumber> at_step, bool is_model) override {
    connected_for_model = is_model;
    awaited_step = at_step;
    if (optimizer != "default") return absl::NotFoundError("no such optimizer");
    absl::MutexLock lock(&mutex_);
    ++connects_;
    std::vector<std::unique_ptr<OwnerSave>> owners;
    for (Rank rank = 0; rank < world_size_; ++rank) {
      owners.push_back(std::make_unique<Owner>(*this, rank));
    }
    return owners;
  }

  absl::StatusOr<std::vector<SafetensorsTensor>> ModelTensors(const std::string&,
                                                              Generation generation) override {
    if (followed_now.value_or(present) != generation) return absl::AbortedError("another one");
    return ModelTensorsOf(
        SavedModel(step_).Description(world_size_, PartitionPolicy::kBalanced).parameters);
  }

  Generation generation(const std::string&) override { return present; }

 private:
  class Owner final : public OwnerSave {
   public:
    Owner(FakeSavingOwners& all, Rank rank) : all_(all), rank_(rank) {}
    ~Owner() override { all_.Forget(this); }

    void Prepare(std::function<void(absl::Status)> done) override {
      if (!IsSilent(SaveCall::kPrepare, done)) done(all_.before(SaveCall::kPrepare, rank_));
    }

    void Open(std::function<void(absl::StatusOr<SnapshotMoment>)> done) override {
      if (IsSilent(SaveCall::kOpen, done)) return;
      if (rank_ == 0 && all_.keeps_open) {
        return std::exchange(all_.keeps_open, nullptr)(std::move(done));
      }
      const absl::Status failed = all_.before(SaveCall::kOpen, rank_);
      if (!failed.ok()) return done(failed);
      const SnapshotMoment moment{all_.present, all_.step_};
      done(rank_ == 1 ? all_.moment_of_rank_1.value_or(moment) : moment);
    }

    void OpenedElsewhere(const SnapshotMoment& moment) override { all_.told(rank_, moment); }

    void Write(const std::string& directory, const std::string& name,
               std::function<void(int64_t, int64_t)> progress,
               std::function<void(absl::StatusOr<WrittenShard>)> done) override {
      if (IsSilent(SaveCall::kWrite, done)) return;
      const absl::Status failed = all_.before(SaveCall::kWrite, rank_);
      if (!failed.ok()) return done(failed);
      if (rank_ == 1 && all_.progress_of_rank_1.has_value()) {
        progress(all_.progress_of_rank_1->first, all_.progress_of_rank_1->second);
      }
      done(Written(directory, name, std::move(progress)));
    }

    void WriteModel(const ModelShare& share, std::function<void(int64_t, int64_t)> progress,
                    std::function<void(absl::StatusOr<int64_t>)> done) override {
      if (IsSilent(SaveCall::kWrite, done)) return;
      const absl::Status failed = all_.before(SaveCall::kWrite, rank_);
      if (!failed.ok()) return done(failed);
      if (rank_ == 1 && !all_.writes_all) return done(0);
      done(WrittenModel(share, std::move(progress)));
    }

    void Cancel() override { all_.Cancel(this); }

   private:
    template <typename Done>
    bool IsSilent(SaveCall call, const Done& done) {
      return all_.WaitIfSilent(call, rank_, this,
                               [done](const absl::Status& status) { done(status); });
    }

    absl::StatusOr<WrittenShard> Written(const std::string& directory, const std::string& name,
                                         std::function<void(int64_t, int64_t)> progress) {
      const SavedModel model(all_.step_);
      const auto policy = PartitionPolicy::kBalanced;
      auto root = all_.files_.OpenDirectory(directory);
      if (!root.ok()) return root.status();
      auto checkpoint = (*root)->OpenDirectory(name);
      if (!checkpoint.ok()) return checkpoint.status();
      WrittenShard written;
      CheckpointManifest description = model.Description(all_.world_size_, policy);
      OwnerState state =
          model.StateOf(rank_ == 1 ? all_.file_of_rank_1 : rank_, all_.world_size_, policy);
      const std::string blob = SavedModel::BlobOf(rank_, all_.step_);
      state.blob = blob;
      OwnerWriteOptions options;
      options.progress = std::move(progress);
      auto part = WriteOwnerFile(**checkpoint, description.parameters, state, options);
      if (!part.ok()) return part.status();
      written.part = *std::move(part);
      description.step = 0;
      description.generation = all_.present;
      if (rank_ == 0 && all_.describes) written.description = std::move(description);
      return written;
    }

    absl::StatusOr<int64_t> WrittenModel(const ModelShare& share,
                                         std::function<void(int64_t, int64_t)> progress) {
      const SavedModel model(all_.step_);
      const auto policy = PartitionPolicy::kBalanced;
      const auto parameters = model.Description(all_.world_size_, policy).parameters;
      const auto layout = LayOutModel(ModelTensorsOf(parameters), share.shard_bytes);
      if (!layout.ok()) return layout.status();
      if (layout->checksum() != share.layout_checksum) return absl::InternalError("its checksum");
      auto root = all_.files_.OpenDirectory(share.directory);
      if (!root.ok()) return root.status();
      auto unfinished = (*root)->OpenDirectory(share.name);
      if (!unfinished.ok()) return unfinished.status();
      OwnerWriteOptions options;
      options.progress = std::move(progress);
      return WriteModelShare(
          **unfinished, *layout,
          ModelSlicesOf(parameters, model.StateOf(rank_, all_.world_size_, policy).slices),
          options);
    }

    FakeSavingOwners& all_;
    const Rank rank_;
  };

  bool HasSilent() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(waiting_.size()) >= awaited_;
  }
  bool WaitIfSilent(SaveCall call, Rank rank, OwnerSave* owner,
                    std::function<void(absl::Status)> done) {
    absl::MutexLock lock(&mutex_);
    if (silent_ != std::make_pair(call, rank)) return false;
    waiting_[owner] = std::move(done);
    return true;
  }
  void Forget(OwnerSave* owner) {
    absl::MutexLock lock(&mutex_);
    waiting_.erase(owner);
  }
  void Cancel(OwnerSave* owner) {
    std::function<void(absl::Status)> done;
    {
      absl::MutexLock lock(&mutex_);
      ++cancelled_;
      done = std::move(waiting_[owner]);
      waiting_.erase(owner);
    }
    if (done) done(absl::CancelledError("the save was given up"));
  }

  FileSystem& files_;
  const int world_size_;
  StepNumber step_;
  mutable absl::Mutex mutex_;
  absl::optional<std::pair<SaveCall, Rank>> silent_ ABSL_GUARDED_BY(mutex_);
  int connects_ ABSL_GUARDED_BY(mutex_) = 0;
  int cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  int awaited_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<OwnerSave*, std::function<void(absl::Status)>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_COORDINATOR_SAVING_FAKE_SAVING_OWNERS_H_
