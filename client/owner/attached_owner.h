// The trainer's end of its attachment to the shard server of its node: asks for steps through the
// doorbell, over memory that the server has given.
#ifndef OPTSHARD_CLIENT_OWNER_ATTACHED_OWNER_H_
#define OPTSHARD_CLIENT_OWNER_ATTACHED_OWNER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/owner/owner_link.h"
#include "client/owner/server_line.h"
#include "common/attach/attachment.h"
#include "common/attach/doorbell.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/device_api.h"
#include "common/link/local_socket.h"
#include "common/memory_layout.h"
#include "common/optimizer_spec.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/state/state_access.h"

namespace optshard {

// A forked child must not use it, and holds nothing of it.
class AttachedOwner : public OwnerLink {
 public:
  struct Options {
    LocalAddress socket;  // the shard server's
    std::string job = "optshard";
    std::string optimizer = "default";
    Rank rank = 0;
    OptimizerSpec spec;
    std::string node;
    int threads = 0;
    bool copy_parameters_at_once = false;  // ShardedOptimizerOptions
    // That the parameters are on, with its DeviceApi::HardwareId, and the stream on which the
    // trainer's thread works now; null: they are in memory of the host.
    std::shared_ptr<DeviceApi> device;
    std::string hardware_id;
    std::function<void*()> current_stream;
    bool state_on_host = false;  // with a device
    absl::Duration join_timeout = absl::Seconds(60);
    // A server ends its steps at the call's timeout. This is the time on top of it in which the
    // coordinator attributes a failure. A server that has not answered by then is stuck.
    absl::Duration answer_slack = absl::Seconds(30);
  };

  // UNAVAILABLE naming the socket where no server listens; PERMISSION_DENIED; and what
  // proto/optshard/v1/attach.proto says of its answer.
  static absl::StatusOr<std::unique_ptr<AttachedOwner>> Attach(const Options& options);
  ~AttachedOwner() override;

  // The predecessor's last blob that went with a finished step, and that step's number; 0 if there
  // never was a blob.
  const std::string& blob() const override { return first_.blob; }
  StepNumber blob_step() const { return first_.blob_step; }
  // Sent with the next step, and kept once that is finished. INVALID_ARGUMENT beyond kMaxBlobBytes.
  absl::Status SetBlob(absl::string_view blob) override;

  Incarnation incarnation() const { return line()->reply().incarnation; }
  Generation generation() const { return line()->reply().generation; }

  // The server knows where they lie, and is told what the trainer writes to them.
  void KeepParameters(const std::shared_ptr<const ParameterMemory>& memory) override;

  absl::Span<const ReplicaRegion> replica() const override { return memory_->regions(); }
  std::shared_ptr<const void> replica_memory() const override { return memory_; }
  bool resumes() const override { return resumes_; }
  StepNumber finished_step() const override { return finished_; }

  absl::Status SyncParameters(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions,
                              absl::Duration timeout) override;
  absl::Status AddGroups(const OptimizerSpec& spec,
                         const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                         const absl::Status& prepared, absl::Duration timeout) override;
  absl::Status GiveAddedValues(absl::Span<const ReplicaTensor> replica,
                               absl::Span<const ReplicaRegion> regions,
                               absl::Duration timeout) override;
  absl::Status VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions,
                              absl::Duration timeout) override;
  // On a device it first waits, within the timeout, until that has done what the trainer has put on
  // its stream: DEADLINE_EXCEEDED naming the device where it has not, and then nothing was asked.
  // The step itself has the timeout again.
  //
  // Where the server is gone and its keeper lives, which starts another one: OwnerAway
  // (UNAVAILABLE). The next call attaches to that one, which knows whether the step is done
  // already; it, too, says OwnerAway where the job is not complete again in time.
  //
  // Otherwise, where it is gone, or does not answer: StepInDoubt (DATA_LOSS) if it had begun the
  // step. Else the step is not applied, later neither: UNAVAILABLE where it is gone, and
  // PeersTimedOut (DEADLINE_EXCEEDED) naming this rank where it does not answer; then the call may
  // be made again.
  absl::StatusOr<StepInfo> Step(const StepInput& input) override;
  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) override;
  absl::Status FinishLoading(const LoadedStep& loaded, absl::Span<const ReplicaTensor> replica,
                             absl::Span<const ReplicaRegion> regions,
                             absl::Duration timeout) override;
  absl::Status ReplaceState(absl::Duration timeout) override;
  // Each call of the access is a request to the server, which needs no other rank for it. Errors as
  // Step where that is gone or does not answer, but never StepInDoubt; one that was begun and is
  // not answered in time breaks the link.
  absl::StatusOr<StateAccess*> state(absl::Duration timeout) override;
  bool MakeRoom() override { return false; }
  // The rank's state stays with the server.
  absl::Status Stop(absl::Duration timeout) override;

  absl::Status failure() const override;
  int64_t state_bytes() const override;
  const ShardView* view() const override { return nullptr; }
  const std::string& owner_address() const override { return first_.owner_address; }
  const std::string& coordinator_address() const override { return first_.coordinator; }
  absl::StatusOr<std::vector<std::string>> owner_addresses(absl::Duration timeout) const override;

 private:
  class State;

  AttachedOwner(const Options& options, std::shared_ptr<ServerLine> line,
                std::shared_ptr<const ReplicaSegments> memory);

  static AttachRequest RequestOf(const Options& options);
  static ReplicaSegments::Place PlaceOf(const Options& options);
  static void LogPlane(const Options& options, const AttachReply& reply);
  absl::Status CheckReplica(absl::Span<const ReplicaTensor> replica) const;
  absl::Status AwaitOwnWork(absl::Duration timeout) const;
  void SetHyperparameters(absl::Span<const Hyperparameters> given);
  absl::Status AskBetweenSteps(DoorbellRequest::Kind kind, absl::Span<const ReplicaTensor> replica,
                               absl::Duration timeout);
  // Rings and waits for the answer.
  absl::StatusOr<DoorbellReply> Ask(absl::Duration timeout);
  absl::StatusOr<DoorbellReply> AskOver(ServerLine& line, absl::Duration timeout,
                                        absl::Duration slack);
  void Leave(absl::Duration timeout);
  absl::Status CheckUsable();
  absl::Status EnsureAttached(absl::Duration timeout);
  absl::Status ServerGone(ServerLine& line, uint64_t number);
  absl::Status AttachAgain(absl::Duration timeout);
  absl::Status TakeAddedAgain(ServerLine& line, absl::Time deadline);
  absl::Status NotTheSame(const ServerLine& line);
  absl::Status MayComeYet(const absl::Status& failed);
  const OptimizerSpec& spec() const { return specs_.back(); }
  absl::Status BegunUnanswered(const absl::Status& cause) const;
  absl::Status Fail(const absl::Status& failure);
  std::shared_ptr<ServerLine> line() const;
  std::string What() const;  // of request_, for people

  const pid_t process_;
  const Options options_;
  std::vector<OptimizerSpec> specs_;  // by admission; the last one counts
  MemoryLayout layout_;
  const AttachReply first_;  // of the server that this trainer attached to first
  std::shared_ptr<const ReplicaSegments> memory_;
  bool resumes_;
  DoorbellRequest request_;
  uint64_t unanswered_ = 0;  // the last request, where the server went while it was waited for
  std::vector<Hyperparameters> hyperparameters_;  // those of request_
  std::unique_ptr<State> state_;                  // once it was asked for
  std::shared_ptr<const TrainerWrites> writes_;   // null: nobody knows of them
  StepNumber finished_ = 0;
  // Of a FinishLoading that was not answered: its server may have done it.
  absl::optional<StepNumber> loading_to_;
  CallNumber last_call_ = 0;
  bool stopped_ = false;

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServerLine> line_ ABSL_GUARDED_BY(mutex_);  // replaced by the trainer's thread
  int64_t state_bytes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_ATTACHED_OWNER_H_
