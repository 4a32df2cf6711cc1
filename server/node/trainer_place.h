// The place of a hosted rank's trainer: who has it, who is about to have it, and how the last one
// went.
#ifndef OPTSHARD_SERVER_NODE_TRAINER_PLACE_H_
#define OPTSHARD_SERVER_NODE_TRAINER_PLACE_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/attach/doorbell.h"
#include "common/attach/write_counts.h"
#include "common/ids.h"
#include "common/link/process_handle.h"
#include "server/node/rank_record.h"

namespace optshard {

// One trainer's attachment to its rank, from admission until the trainer is gone.
struct Attachment {
  Attachment(Incarnation incarnation_, ProcessHandle process_, Doorbell doorbell_,
             std::shared_ptr<WriteCountAsker> write_counts_)
      : incarnation(incarnation_),
        process(static_cast<ProcessHandle&&>(process_)),
        doorbell(static_cast<Doorbell&&>(doorbell_)),
        write_counts(static_cast<std::shared_ptr<WriteCountAsker>&&>(write_counts_)) {}

  const Incarnation incarnation;
  const ProcessHandle process;
  // Used by the rank's thread; others only wake it. Replaced by that thread when groups are added.
  Doorbell doorbell;
  const std::shared_ptr<WriteCountAsker> write_counts;
  int admissions = 1;  // of param groups that the trainer has; the rank's thread only
  std::atomic<bool> ended{false};
};

//   nobody --Seat--> held --Leave--> left --Clear--> nobody
//
// `left`: what the trainer asked before it went may still be done. Who waits to be seated reserves
// the place, so that no two wait; that is possible unless somebody holds it. Thread-compatible.
class TrainerPlace {
 public:
  // The record's trainer is kept up to date, for a server that takes over. It outlives this.
  explicit TrainerPlace(RankRecord* record) : record_(*record) {}

  // Whether it can be reserved.
  bool free() const {
    return reserved_ == nullptr && (attachment_ == nullptr || attachment_->ended);
  }
  // ALREADY_EXISTS naming the process that has the place, what it does, and what to do: nobody else
  // can have it before. Also of an earlier server's trainer, of whose end nobody has told this one.
  // `name` is the rank's, for people.
  absl::Status CheckFree(const std::string& name, const ProcessHandle& successor) const;

  void Reserve(const ProcessHandle& process) { reserved_ = &process; }
  bool reserved() const { return reserved_ != nullptr; }
  // Ends the reservation. `gone`: because the process has gone, which says how the last one went,
  // where that is not known.
  void GiveUp(bool gone);
  // Nobody has the place: this trainer has it now, and no reservation.
  void Seat(std::shared_ptr<Attachment> attachment);

  // The trainer is gone; `how` is text for error messages. False where that was known.
  bool Leave(const std::shared_ptr<Attachment>& attachment, absl::string_view how);
  // Nothing more is done for it.
  void Clear(const std::shared_ptr<Attachment>& attachment);

  // Who has the place, or has left it; null: nobody.
  const std::shared_ptr<Attachment>& attachment() const { return attachment_; }
  bool held() const { return attachment_ != nullptr && !attachment_->ended; }
  const std::string& how_gone() const { return how_gone_; }  // the last one; empty: nobody went

 private:
  RankRecord& record_;
  const ProcessHandle* reserved_ = nullptr;
  std::shared_ptr<Attachment> attachment_;
  std::string how_gone_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_TRAINER_PLACE_H_
