// One rank that a shard server hosts: the memory of its replica, its shard owner, the thread that
// steps it, and whoever is its trainer at present. Trainers come and go, the rank stays.
#ifndef OPTSHARD_SERVER_NODE_HOSTED_RANK_H_
#define OPTSHARD_SERVER_NODE_HOSTED_RANK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/attach/attachment.h"
#include "common/attach/doorbell.h"
#include "common/cancellation.h"
#include "common/link/bell.h"
#include "common/link/memory_budget.h"
#include "common/link/process_handle.h"
#include "server/node/rank_memory.h"
#include "server/node/step_rounds.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// One trainer's time with its rank.
struct Attachment {
  Attachment(Incarnation incarnation_, ProcessHandle process_, Doorbell doorbell_)
      : incarnation(incarnation_),
        process(static_cast<ProcessHandle&&>(process_)),
        doorbell(static_cast<Doorbell&&>(doorbell_)) {}

  const Incarnation incarnation;
  const ProcessHandle process;
  Doorbell doorbell;  // the rank's thread's; others wake it
  std::atomic<bool> ended{false};
};

// Thread-safe. A thread of its own makes all calls to the shard owner.
class HostedRank {
 public:
  struct Options {
    // What the rank is, by its first trainer's request. Of an earlier server: the rank goes on.
    std::shared_ptr<RankMemory> memory;
    // It outlives this server: where some rank is lost, the job is formed again.
    bool kept = false;
    // What the owner is started with; the rest follows from the request.
    CoordinatorClient* coordinator = nullptr;
    Cancellation* joining = nullptr;  // ends the wait for the other ranks
    PlaneFactory plane_factory;       // that of a plane which uses the memory's replica
    std::string owner_address;
    // The owner's view is there, until it is told (nullptr) that it goes.
    std::function<void(const ShardView*)> show;
    MemoryBudget* budget = nullptr;
    std::shared_ptr<const void> reservation;  // there, for what else the owner takes
    std::shared_ptr<StepRounds> rounds;       // of all ranks of the optimizer
  };

  // Begins to join the job.
  explicit HostedRank(Options options);
  // Ends the thread; Drain and WaitEnded first, or it looks to the others like a crash.
  ~HostedRank();

  // A trainer wants the rank. Waits until the owner has started and the predecessor's last step is
  // done, for as long as the request says; `here` says whether the trainer still waits.
  //   INVALID_ARGUMENT   it is not what the first trainer was
  //   ALREADY_EXISTS     a living trainer has the rank
  //   DEADLINE_EXCEEDED  the predecessor's last step does not end
  //   UNAVAILABLE        shutting down; the trainer is gone again
  // and what has kept the owner from starting, or how it has failed.
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const AttachRequest& request,
                                                     ProcessHandle process,
                                                     const std::function<bool()>& here,
                                                     AttachReply* reply);
  // The trainer is gone: `how`, for people.
  void Detach(const std::shared_ptr<Attachment>& attachment, absl::string_view how);

  Rank rank() const { return rank_; }
  const ReplicaSegments& replica() const { return *options_.memory->replica(); }

  // Has joined, works, and has a trainer.
  bool Ready() const;
  // The owner could not start, and there is no state yet that would be lost: of no use any more.
  bool Useless() const;

  // The thread finishes its step, leaves the job in good order and ends. Does not wait.
  void Drain();
  // Whether the thread has ended by the deadline (Clock::Monotonic()).
  bool WaitEnded(absl::Time deadline) const;
  // Whatever the owner waits for on the data plane fails now.
  void AbortPlane(const absl::Status& reason);

 private:
  // A trainer that goes wild may spoil its bell. Then the thread still looks this often.
  static constexpr absl::Duration kLook = absl::Seconds(1);

  enum class Phase { kStarting, kServing, kEnded };
  // Why Serve returns.
  enum class Next { kStop, kFormAgain };
  // Which call of its step() a trainer asks for.
  enum class Asked { kNext, kDone, kOther };

  void Run();
  absl::Status Form();
  absl::Status FormAgain();
  absl::Status StartOwner();
  absl::Status PlaceReplica();
  Next Serve();
  bool LostOthers() const;
  absl::Status Away() const;
  void RefuseTrainer(const absl::Status& reason, bool broken);

  void ServeTrainer(Attachment& trainer);
  bool HandleRequest(Attachment& trainer);
  void ServeNobody();
  absl::Status TakeRequest(Attachment& trainer);
  absl::Status UseHyperparameters();
  Asked WhichCall() const;
  DoorbellReply Step();
  StepInput InputOf(const DoorbellRequest& request);
  void Finish(const DoorbellReply& reply);
  absl::Status CheckSuccessor(const AttachRequest& request) const;
  absl::Status TakePlace(const AttachRequest& request, const ProcessHandle& process)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Attachment>> Admit(const AttachRequest& request,
                                                    ProcessHandle process, AttachReply* reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Settled() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status ShuttingDown();
  std::string Name() const;

  const Options options_;
  const AttachRequest& first_;  // in options_.memory
  RankRecord& record_;          // likewise
  const Rank rank_;
  const bool takes_over_;  // from an earlier server, which had synchronised it

  // Of the rank's thread; the owner's view and plan are also read by others once it serves.
  std::unique_ptr<ShardOwner> owner_;
  std::vector<ReplicaRegion> regions_;
  std::vector<ReplicaTensor> all_tensors_;  // with all gradients
  std::vector<ReplicaTensor> tensors_;      // with those of the present step
  DoorbellRequest request_;
  Incarnation asking_ = 0;               // whose request_ is
  uint64_t hyperparameter_version_ = 0;  // those decoded last; 0: none of this trainer's
  std::vector<Hyperparameters> constructed_;
  std::vector<Hyperparameters> hyperparameters_;
  absl::Duration refusal_pause_;
  // Until when the trainers of the server before may come back; far away where there was none.
  absl::Time return_deadline_ = absl::InfiniteFuture();
  uint32_t heard_ = 0;

  // Rung for the thread where no trainer can ring.
  Bell control_;
  std::atomic<bool> draining_{false};

  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kStarting;
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status away_ ABSL_GUARDED_BY(mutex_);  // of kStarting, where there is state already
  bool busy_ ABSL_GUARDED_BY(mutex_) =
      false;  // in what a trainer asked for, or the first synchronisation
  StepProgress progress_ ABSL_GUARDED_BY(mutex_);
  const ProcessHandle* attaching_ ABSL_GUARDED_BY(mutex_) = nullptr;  // who waits in Attach
  std::shared_ptr<Attachment> attachment_ ABSL_GUARDED_BY(mutex_);
  std::string how_gone_ ABSL_GUARDED_BY(mutex_);  // the last trainer

  std::thread thread_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_HOSTED_RANK_H_
