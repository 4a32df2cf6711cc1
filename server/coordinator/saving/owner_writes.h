// All owners write, and whoever watches sees how far they are.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_OWNER_WRITES_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_OWNER_WRITES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "common/request_limits.h"
#include "server/coordinator/saving/owner_answers.h"
#include "server/coordinator/saving/save_board.h"
#include "server/coordinator/saving/saving_owners.h"

namespace optshard {

// That an owner says to have, or to have written. The sum over all ranks fits into 63 bits.
constexpr int64_t kMostOwnerBytes = int64_t{1} << 46;
static_assert(kMostOwnerBytes <= INT64_MAX / kMaxWorldSize, "it fits");

// How far each owner is. Thread-safe.
class WriteProgress {
 public:
  WriteProgress(size_t owners, std::shared_ptr<SaveBoard> board)
      : ranks_(owners), board_(std::move(board)) {}

  void Set(Rank rank, int64_t bytes, int64_t all) {
    board_->Update([&](SaveProgress& progress) {
      // Under the board's lock.
      progress.bytes += bytes - ranks_[rank].bytes;
      progress.all_bytes += all - ranks_[rank].all;
      ranks_[rank] = {bytes, all};
    });
  }

  void SetWritten() {
    board_->Update([](SaveProgress& progress) { ++progress.written; });
  }

 private:
  struct OfRank {
    int64_t bytes = 0;
    int64_t all = 0;
  };
  std::vector<OfRank> ranks_;
  const std::shared_ptr<SaveBoard> board_;
};

inline void CancelAll(const std::vector<std::unique_ptr<OwnerSave>>& owners) {
  for (const std::unique_ptr<OwnerSave>& owner : owners) owner->Cancel();
}

struct WriteWait {
  std::string what;              // the owners do, for an error
  absl::Duration longest_stall;  // of an owner that writes nothing
  absl::Duration end_timeout;    // for the owners' end after an error
};

// Has every owner write: `start` begins that, with what is to be called meanwhile and afterwards.
// Their answers by rank. After an error of one, or a cancellation, all are cancelled and have ended
// where that was soon enough. Errors as OwnerAnswers::Await; INTERNAL for progress that cannot be.
template <typename T>
absl::StatusOr<std::vector<T>> WriteAtAll(
    const std::vector<std::unique_ptr<OwnerSave>>& owners, const std::shared_ptr<SaveBoard>& board,
    const WriteWait& wait, Cancellation& cancellation,
    const std::function<void(OwnerSave& owner, std::function<void(int64_t, int64_t)> progress,
                             std::function<void(absl::StatusOr<T>)> done)>& start) {
  const auto answers = std::make_shared<OwnerAnswers<T>>(owners.size());
  const auto written = std::make_shared<WriteProgress>(owners.size(), board);
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    start(
        *owners[i],
        [answers, written, rank](int64_t bytes, int64_t all) {
          if (bytes < 0 || bytes > all || all > kMostOwnerBytes) {
            return answers->Take(
                rank, absl::InternalError(absl::StrFormat(
                          "it says that it has written %d of %d bytes, expected 0 to as many "
                          "as there are, and at most %d: report it",
                          bytes, all, kMostOwnerBytes)));
          }
          answers->Hear(rank);
          written->Set(rank, bytes, all);
        },
        [answers, written, rank](absl::StatusOr<T> answer) {
          if (answer.ok()) written->SetWritten();
          answers->Take(rank, std::move(answer));
        });
  }
  auto all = answers->Await(wait.longest_stall, cancellation, wait.what);
  if (!all.ok()) {
    // Before what they have written is removed.
    CancelAll(owners);
    answers->AwaitEnd(wait.end_timeout);
  }
  return all;
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_OWNER_WRITES_H_
