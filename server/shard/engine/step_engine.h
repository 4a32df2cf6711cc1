// Runs the steps of one rank: prepare, commit, apply and publish (docs/life_of_a_step.md).
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_STEP_ENGINE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_STEP_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/byte_share.h"
#include "common/host_transfer.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/step_info.h"
#include "server/shard/engine/commit_decision.h"
#include "server/shard/engine/commit_vote.h"
#include "server/shard/engine/load_input.h"
#include "server/shard/engine/replica_memory.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/engine/step_record.h"
#include "server/shard/engine/touched_rows.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/state/staged_state.h"

namespace optshard {

// Whose values the ranks' replicas hold.
enum class ParameterValues : uint8_t {
  kOfEachRank,       // before the first synchronisation; steps may follow, unless there are masters
  kAddedAreMissing,  // of groups that were added: all synchronise before the next step
  kOfTheJob,
};

// Bound to one thread, and to one generation. After an error that is not `refused` no other call
// may follow.
class StepEngine {
 public:
  struct Options : StepContext {
    Incarnation incarnation = 0;
    ParameterValues values = ParameterValues::kOfEachRank;
    // Those that the last finished step was made with, by group, where there is no `before`; empty:
    // those that the optimizer is constructed with.
    std::vector<Hyperparameters> last_hyperparameters;
    // Of the store; outlives the engine.
    AgreedSnapshots* snapshots = nullptr;
    // The rank's engine of the generation before, between steps; null: none. This one goes on where
    // it was, with a store that has grown from its store, and with kAddedAreMissing. Used by Create
    // alone.
    const StepEngine* before = nullptr;
  };

  struct Result {
    absl::Status status;
    // Where not OK: how far the step can have come. kIdle otherwise.
    StepOutcome outcome = StepOutcome::kIdle;
    // The status is the data plane's, which has been aborted: some rank may be lost. Otherwise all
    // ranks return this error, by their votes.
    bool plane_failed = false;
    // By their votes, and the next call can succeed, once what the error says is corrected. Nothing
    // has changed.
    bool refused = false;
    StepInfo info;
  };

  // What MakeExchange returns (exchange_choice.h).
  static absl::StatusOr<std::unique_ptr<StepEngine>> Create(const Options& options);
  // Aborts the plane where a step is under way on the device.
  ~StepEngine();
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;

  // With the state on a device it returns when the step is enqueued there, and finished() counts
  // it. What fails afterwards is the error of the next call, which first waits for it: then
  // finished() no longer does, and the outcome is kTorn. So no rank votes for a step before the
  // last one is done there.
  Result Step(const StepInput& input);

  // Waits until what the last step has enqueued on a device is done: like the beginning of every
  // other call.
  Result Synchronize(absl::Duration timeout);

  // Takes part in the others' next step, or where values are missing in their synchronisation,
  // whenever they come until the deadline, so that all give it up for this reason. The result has
  // that error.
  Result Refuse(const absl::Status& reason, absl::Time deadline = absl::InfiniteFuture());

  // Rank 0's parameter values go to all. Masters take what was changed. What fails once values
  // travel is kTorn where they were kOfTheJob. Otherwise there was nothing to tear, and all may
  // synchronise again, with an engine of their next generation. `stream`: as StepInput's.
  Result SyncParameters(absl::Span<const ReplicaTensor> replica,
                        absl::Span<const ReplicaRegion> regions, absl::Duration timeout,
                        void* stream = nullptr);

  // Compares the bits of all ranks' replicas. Where they differ, all ranks refuse, with the first
  // parameter that differs (ReplicasDiffer). Nothing changes. `stream`: as StepInput's.
  Result VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                        absl::Span<const ReplicaRegion> regions, absl::Duration timeout,
                        void* stream = nullptr);

  // All ranks get the bytes (ByteShare). Nothing changes. Refused where ranks are at another
  // exchange (ABORTED), or share more than kMaxShareBytes.
  Result ShareBytes(const ByteShare& share, absl::Duration timeout);

  // All ranks have staged state and parameters of the same step. They take the place of those that
  // there are, and the next step follows that one, after no skipped call. Refused where a rank has
  // staged nothing (`staged` is null or of kState), ranks give different steps, or one gives
  // hyperparameters that cannot be. What fails afterwards is kTorn, or kApplied where this rank has
  // taken its own. `staged` is of no use any more unless it is refused.
  Result FinishLoading(const LoadInput& load, const StagedState* staged);

  // Likewise of state alone (kState), without a step. What fails once all have voted is
  // kNotApplied, and the ledger says that it is replaced in part.
  Result ReplaceState(const StagedState* staged, absl::Duration timeout);

  StepNumber finished() const { return finished_; }
  // Whether the last finished one is only enqueued, as far as the engine knows.
  bool is_under_way() const { return under_way_; }
  // The ledger's, between steps.
  StepProgress progress() const { return {finished_, StepOutcome::kIdle, skipped_}; }
  const StepRecord& record() const { return record_; }  // of the last step
  ParameterValues values() const { return values_; }

 private:
  // A call of the trainer's, in which all ranks vote. Snapshots are opened between them.
  class Call {
   public:
    explicit Call(const StepEngine* engine) : engine_(*engine) {}
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { engine_.options_.snapshots->EndCall(engine_.now()); }

   private:
    const StepEngine& engine_;
  };

  // The gathers of a commit, as the bucket of their tags.
  enum CommitRound : int32_t {
    kVotes = 0,
    kHyperparameters = 1,
    kLedgersAreMarked = 2,
    kRefusalIsKnown = 3,
    kMastersAreTaken = 4,
    kTrainerUpdatesHaveRun = 5,
    kSharedBytes = 6,
    kStateIsTaken = 7,
    kReplicaDigests = 8,  // and the numbers after it
  };

  // What the votes of all ranks say.
  struct Agreement {
    std::vector<CommitVote> votes;
    CommitDecision decision;
    absl::Time reduced;  // when the step was prepared
    // Where it failed: how far the step can have come.
    StepOutcome outcome = StepOutcome::kNotApplied;
  };

  StepEngine(const Options& options, std::unique_ptr<StepExchange> exchange);

  // Between calls.
  BetweenCalls now() const { return {finished_, !LacksValues(), hyperparameters_, skipped_}; }
  // No step before a synchronisation.
  bool LacksValues() const {
    return values_ == ParameterValues::kAddedAreMissing ||
           (values_ == ParameterValues::kOfEachRank && options_.state().MayHaveMasters());
  }

  // Between memory of the host and what the replica and the state are in.
  HostTransfer& transfer();
  // Waits for what is under way on the device; gives the result that ends the call, if it failed.
  absl::optional<Result> Settle(absl::Time deadline);
  Result TakePart(const StepInput& input, const absl::Status& willing, absl::Time deadline);
  Result RefuseToSynchronise(const absl::Status& reason, absl::Time deadline);
  Result Apply(const ReplicaMemory& replica, absl::Time deadline);
  // Where one fails, on any rank, all give the step up before a replica changes.
  Result RunTrainerUpdates(const ReplicaMemory& replica, absl::Time deadline);
  absl::Status CheckLoad(const LoadInput& load, const StagedState* staged);
  absl::Status TakeParameters(const StagedState& staged, const ReplicaMemory& replica,
                              absl::Time deadline);
  absl::Status CheckReplica(absl::Span<const ReplicaTensor> replica,
                            absl::Span<const ReplicaRegion> regions) const;
  absl::Status UseHyperparameters(absl::Span<const Hyperparameters> given);
  void RememberHyperparameters();

  // Whether the gradients are such as the rules take.
  absl::Status CheckGradients(absl::Span<const ReplicaTensor> replica) const;
  // Prepares the step and has all ranks vote on it. The error is the data plane's.
  absl::Status Agree(const ReplicaMemory& replica, const absl::Status& prepared, absl::Time start,
                     absl::Time deadline, Agreement* agreed);
  // All ranks learn which rows the sparse gradients of all ranks have. `prepared` gets what is
  // wrong with them.
  absl::Status GatherRows(const ReplicaMemory& replica, absl::Time deadline);

  CommitVote MakeVote(const ReplicaMemory& replica, const absl::Status& prepared,
                      CommitCall call) const;
  // The votes of a call, which also open snapshots.
  absl::Status GatherFirstVotes(CommitVote own, absl::Time deadline, std::vector<CommitVote>* votes,
                                bool* sent);
  // `sent`: this rank's vote may have reached others.
  absl::Status GatherVotes(CommitRound round, const CommitVote& own, absl::Time deadline,
                           std::vector<CommitVote>* votes, bool* sent);
  // Votes for a call between steps; gives the result that ends it, if any. `others_have_begun` is
  // the outcome where the votes fail after others may have them.
  absl::optional<Result> AgreeOnCall(CommitCall call, uint64_t subject, const absl::Status& usable,
                                     StepOutcome others_have_begun, absl::Time deadline);
  // Returns OK when all ranks have called it.
  absl::Status Barrier(CommitRound round, absl::Time deadline);
  absl::Status AllGather(CommitRound round, const std::vector<char>& contribution,
                         std::vector<char>* gathered, absl::Time deadline, bool* started = nullptr);
  // Adds the first difference to the decision's error; the data plane's error where it fails.
  absl::Status NameDifferentHyperparameters(absl::Span<const CommitVote> votes, absl::Time deadline,
                                            CommitDecision* decision);
  void PrepareCoefficients();
  // Masters that are not the parameters' values, rounded, become them. OK once all ranks' have.
  absl::Status TakeMasters(const ReplicaMemory& replica, absl::Time deadline);
  absl::Status TakeOwnMasters(const ReplicaMemory& replica, absl::Time deadline);
  // The error is the data plane's.
  absl::Status MoveBytes(const ByteShare& share, absl::Time deadline);
  // The error is the data plane's or the device's. `difference` gets ReplicasDiffer where the
  // replicas do.
  absl::Status CompareReplicas(const ReplicaMemory& replica, absl::Time deadline,
                               absl::optional<absl::Status>* difference);
  // The data plane's error ends the call.
  Result Failed(absl::Status status, StepOutcome outcome);
  // The votes do.
  Result GivenUp(const CommitDecision& decision, absl::Time deadline);
  void Abandon(const absl::Status& reason);
  void EndTimeline(const absl::Status& status);

  const Options options_;
  const std::vector<ReplicaTensor> no_replica_;
  HostTransfer on_host_;
  const std::unique_ptr<StepExchange> exchange_;
  const bool runs_trainer_updates_;  // in some group
  TouchedRows rows_;
  std::vector<Rank> all_ranks_;
  std::vector<bool> takes_dense_;       // by parameter
  std::vector<bool> owned_;             // by parameter: whether some of it is
  std::vector<Hyperparameters> given_;  // those that record_.hyperparameters were made from
  std::string hyperparameter_text_;
  StepRecord record_;
  // Of the last finished step, or those that the first one begins with.
  std::shared_ptr<const std::vector<Hyperparameters>> hyperparameters_;
  bool hyperparameters_are_new_ = false;  // the record's are others
  StepNumber finished_;                   // the ledger's, at first
  bool under_way_ = false;                // the last finished one, on a device
  uint64_t skipped_;                      // likewise
  ParameterValues values_;
  std::vector<Incarnation> incarnations_;  // by rank, of the votes so far; 0: none yet
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_STEP_ENGINE_H_
