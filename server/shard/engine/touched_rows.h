// Which rows the sparse gradients of a step have, on all ranks: what of each bucket is reduced,
// updated and published.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_TOUCHED_ROWS_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_TOUCHED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// All ranks have the same. A parameter is watched from the first step on in which some rank's
// gradient of it is sparse: from then on the ranks tell each other the rows before they reduce. A
// dense gradient has all rows. Thread-compatible; space and buckets outlive it.
class TouchedRows {
 public:
  TouchedRows(const ParameterSpace* space, const std::vector<Bucket>* buckets, int world_size);

  // By parameter. Returns whether there is one that was not watched before.
  bool Watch(const std::vector<bool>& parameters);
  bool watches_any() const { return !watched_.empty(); }

  // What a rank tells the others before each step: the marks of all watched parameters.
  std::vector<uint64_t> MarksOf(absl::Span<const ReplicaTensor> replica) const;
  // Those of all ranks, by rank.
  void Take(std::vector<uint64_t> marks);

  // INVALID_ARGUMENT naming parameter, rank and row: not all ranks have the same rows.
  absl::Status CheckAlike() const;

  // The bucket. Where parameters of it are watched: a bucket of the touched rows alone, one behind
  // the other, in which every span is of rows that the same ranks have. Valid until the next Take.
  const Bucket& Of(const Bucket& bucket) const;
  // Which span of the whole bucket a span of Of(bucket) is a part of.
  int WholeSpan(const Bucket& bucket, int span) const;

  // Whether the rank's gradient has the row of this element; true of a parameter that is not
  // watched.
  bool Has(Rank rank, int parameter, int64_t element) const;

 private:
  struct Watched {
    int parameter = 0;
    int64_t rows = 0;
    int64_t row_elements = 0;
    size_t first_word = 0;  // in a rank's marks
  };
  // A bucket with watched parameters.
  struct Cut {
    Bucket touched;
    std::vector<int> whole_spans;  // by span of `touched`
  };

  const uint64_t* Marks(Rank rank, const Watched& watched) const;
  // A row that some rank has, from `row` on; `end` where there is none before.
  int64_t NextTouched(const Watched& watched, int64_t row, int64_t end) const;
  bool SameRanks(const Watched& watched, int64_t row, int64_t other) const;
  void AddTouched(const BucketSpan& span, int whole_span, Cut* cut) const;
  void CutBuckets();

  const ParameterSpace* const space_;
  const std::vector<Bucket>* const buckets_;
  const int world_size_;
  std::vector<Watched> watched_;
  std::vector<int> position_;  // by parameter: in watched_, or -1
  size_t words_ = 0;           // of a rank's marks
  std::vector<uint64_t> marks_;
  std::vector<int> cut_of_;  // by bucket: in cuts_, or -1
  std::vector<Cut> cuts_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_TOUCHED_ROWS_H_
