// What a hosted rank has its shard owner do for its trainer, and what the rank's memory keeps of
// it.
#ifndef OPTSHARD_SERVER_NODE_OWNER_CALLS_H_
#define OPTSHARD_SERVER_NODE_OWNER_CALLS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/attach/doorbell.h"
#include "common/device_api.h"
#include "common/ids.h"
#include "server/node/attached_writes.h"
#include "server/node/rank_memory.h"
#include "server/node/trainer_request.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// Bound to the rank's thread. Except for Use and Take, there is an owner in use, and calls return
// its errors.
class OwnerCalls {
 public:
  // `stream` is one of the rank's device, on which what it is asked for comes in order; null, both:
  // there is no device. `name` is the rank's, for people.
  OwnerCalls(std::shared_ptr<RankMemory> memory, std::shared_ptr<AttachedWrites> writes,
             std::shared_ptr<DeviceApi> device, std::shared_ptr<void> stream, std::string name)
      : memory_(std::move(memory)),
        writes_(std::move(writes)),
        device_(std::move(device)),
        stream_(std::move(stream)),
        name_(std::move(name)),
        request_(absl::in_place, memory_->first_request().spec) {}

  // From now on calls are this owner's, which outlives them, and requests are of what it has. The
  // owner looks for the rank's tensors where the other ranks do. FAILED_PRECONDITION where it
  // cannot.
  absl::Status Use(ShardOwner* owner);

  // Takes the trainer's request: TrainerRequest::Take.
  absl::Status Take(Incarnation trainer, Doorbell& doorbell);
  const DoorbellRequest& asked() const { return request_->asked(); }
  // Of a request that gives some: TrainerRequest::UseHyperparameters.
  absl::Status UseHyperparameters() { return request_->UseHyperparameters(); }

  // What the request asks for, of each kind. MoveState reads into the doorbell's window, or
  // replaces by what was taken from there; or says that it does.
  absl::Status MoveState(const Doorbell& doorbell);
  DoorbellReply Step();
  absl::Status Verify();
  absl::Status FinishLoading();
  // Whether it was done already: by the owner before this one, perhaps, which could not say so any
  // more.
  bool HasLoaded() const;
  absl::Status ReplaceState() { return owner_->ReplaceState(asked().timeout); }
  // Until a device has done what was asked for, also where that was refused: so a process that ends
  // later tears nothing. A wait that gives up would break the owner, and has some time more than
  // the request.
  absl::Status AwaitDevice();
  // What the trainer has staged, once it is gone.
  void DropStaged();
  // The trainer is about to go: what is to be copied of the parameters is copied now.
  void Leave(const Doorbell& doorbell);
  // Not only when asked for.
  absl::Status Synchronise(absl::Duration timeout);

 private:
  void OfferHyperparameters(StepNumber step);
  void KeepValues();
  void ShowParameters();

  const std::shared_ptr<RankMemory> memory_;
  const std::shared_ptr<AttachedWrites> writes_;
  const std::shared_ptr<DeviceApi> device_;
  const std::shared_ptr<void> stream_;
  const std::string name_;
  ShardOwner* owner_ = nullptr;
  absl::optional<TrainerRequest> request_;  // of the admissions that the owner has
  absl::Time deadline_;                     // of the present one
  // The hyperparameters that were given to the memory last, and with which step.
  std::string kept_hyperparameters_;
  StepNumber kept_with_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_OWNER_CALLS_H_
