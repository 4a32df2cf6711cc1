#include "server/node/trainer_place.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "common/link/process_stat.h"

namespace optshard {
namespace {

bool LivesStill(const RankRecord::Trainer& trainer) {
  const absl::optional<ProcessStat> stat = StatOfProcess(trainer.pid);
  return stat.has_value() && !stat->ended() && stat->start_ticks == trainer.start_ticks;
}

absl::Status Taken(const std::string& rank, pid_t pid, pid_t successor) {
  const bool stopped = StatOfProcess(pid).value_or(ProcessStat()).stopped();
  return absl::AlreadyExistsError(absl::StrFormat(
      "%s has a trainer already: process %d, which %s; process %d cannot have the rank before that "
      "one is gone: %s",
      rank, pid, stopped ? "is stopped (state T)" : "lives", successor,
      stopped ? absl::StrCat("continue it (kill -CONT ", pid, ") or end it (kill -KILL ", pid, ")")
              : "give each process a rank of its own, or end that one first"));
}

}  // namespace

absl::Status TrainerPlace::CheckFree(const std::string& name,
                                     const ProcessHandle& successor) const {
  if (!free()) {
    return Taken(name, reserved_ != nullptr ? reserved_->pid() : attachment_->process.pid(),
                 successor.pid());
  }
  const RankRecord::Trainer before = record_.trainer();
  if (attachment_ == nullptr && before.pid != 0 && before.pid != successor.pid() &&
      LivesStill(before)) {
    return Taken(name, before.pid, successor.pid());
  }
  return absl::OkStatus();
}

void TrainerPlace::GiveUp(bool gone) {
  if (gone && how_gone_.empty()) {
    how_gone_ =
        absl::StrCat("its trainer, process ", reserved_->pid(), ", has gone while it attached");
  }
  reserved_ = nullptr;
}

void TrainerPlace::Seat(std::shared_ptr<Attachment> attachment) {
  reserved_ = nullptr;
  attachment_ = std::move(attachment);
  const pid_t pid = attachment_->process.pid();
  record_.SetTrainer({pid, StatOfProcess(pid).value_or(ProcessStat()).start_ticks});
}

bool TrainerPlace::Leave(const std::shared_ptr<Attachment>& attachment, absl::string_view how) {
  if (attachment->ended || attachment != attachment_) return false;
  how_gone_ = std::string(how);
  record_.SetTrainer(RankRecord::Trainer());
  attachment->ended = true;
  return true;
}

void TrainerPlace::Clear(const std::shared_ptr<Attachment>& attachment) {
  if (attachment_ == attachment) attachment_ = nullptr;
}

}  // namespace optshard
