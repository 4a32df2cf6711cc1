#include "server/shard/engine/touched_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/row_marks.h"

namespace optshard {

TouchedRows::TouchedRows(const ParameterSpace* space, const std::vector<Bucket>* buckets,
                         int world_size)
    : space_(space),
      buckets_(buckets),
      world_size_(world_size),
      position_(space->parameter_count(), -1),
      cut_of_(buckets->size(), -1) {}

bool TouchedRows::Watch(const std::vector<bool>& parameters) {
  const size_t before = watched_.size();
  for (int p = 0; p < space_->parameter_count(); ++p) {
    if (!parameters[p] || position_[p] >= 0) continue;
    Watched watched;
    watched.parameter = p;
    watched.rows = RowsOf(space_->parameter(p));
    watched.row_elements = space_->parameter(p).elements() / watched.rows;
    watched.first_word = words_;
    words_ += RowMarkWords(watched.rows);
    position_[p] = static_cast<int>(watched_.size());
    watched_.push_back(watched);
  }
  if (watched_.size() == before) return false;
  cuts_.clear();
  for (const Bucket& bucket : *buckets_) {
    const bool has_watched =
        std::any_of(bucket.spans.begin(), bucket.spans.end(),
                    [this](const BucketSpan& span) { return position_[span.parameter] >= 0; });
    cut_of_[bucket.index] = has_watched ? static_cast<int>(cuts_.size()) : -1;
    if (has_watched) cuts_.emplace_back();
  }
  return true;
}

std::vector<uint64_t> TouchedRows::MarksOf(absl::Span<const ReplicaTensor> replica) const {
  std::vector<uint64_t> marks(words_);
  for (const Watched& watched : watched_) {
    const ReplicaTensor& tensor = replica[watched.parameter];
    if (!tensor.gradient) continue;
    uint64_t* const to = &marks[watched.first_word];
    if (tensor.gradient_rows.marks != nullptr) {
      std::copy_n(tensor.gradient_rows.marks, RowMarkWords(watched.rows), to);
    } else {
      for (int64_t row = 0; row < watched.rows; ++row) MarkRow(to, row);
    }
  }
  return marks;
}

void TouchedRows::Take(std::vector<uint64_t> marks) {
  marks_ = std::move(marks);
  CutBuckets();
}

absl::Status TouchedRows::CheckAlike() const {
  for (const Watched& watched : watched_) {
    for (Rank rank = 1; rank < world_size_; ++rank) {
      for (int64_t row = 0; row < watched.rows; ++row) {
        const bool has = HasRow(Marks(rank, watched), row);
        if (has == HasRow(Marks(0, watched), row)) continue;
        return absl::InvalidArgumentError(absl::StrFormat(
            "the sparse gradient of parameter %d \"%s\" has row %d on rank %d but not on rank %d; "
            "averaged gradients must have the same rows on all ranks (gradient mode \"reduce\" "
            "averages them itself)",
            watched.parameter, space_->parameter(watched.parameter).name, row, has ? rank : 0,
            has ? 0 : rank));
      }
    }
  }
  return absl::OkStatus();
}

const Bucket& TouchedRows::Of(const Bucket& bucket) const {
  const int cut = cut_of_[bucket.index];
  return cut < 0 ? bucket : cuts_[cut].touched;
}

int TouchedRows::WholeSpan(const Bucket& bucket, int span) const {
  const int cut = cut_of_[bucket.index];
  return cut < 0 ? span : cuts_[cut].whole_spans[span];
}

bool TouchedRows::Has(Rank rank, int parameter, int64_t element) const {
  if (position_[parameter] < 0) return true;
  const Watched& watched = watched_[position_[parameter]];
  return HasRow(Marks(rank, watched), element / watched.row_elements);
}

const uint64_t* TouchedRows::Marks(Rank rank, const Watched& watched) const {
  return &marks_[rank * words_ + watched.first_word];
}

int64_t TouchedRows::NextTouched(const Watched& watched, int64_t row, int64_t end) const {
  while (row < end) {
    uint64_t touched = 0;
    for (Rank rank = 0; rank < world_size_; ++rank) {
      touched |= Marks(rank, watched)[row / kRowsPerWord];
    }
    touched >>= row % kRowsPerWord;
    if (touched != 0) return std::min(end, row + __builtin_ctzll(touched));
    row = (row / kRowsPerWord + 1) * kRowsPerWord;
  }
  return end;
}

bool TouchedRows::SameRanks(const Watched& watched, int64_t row, int64_t other) const {
  for (Rank rank = 0; rank < world_size_; ++rank) {
    const uint64_t* const marks = Marks(rank, watched);
    if (HasRow(marks, row) != HasRow(marks, other)) return false;
  }
  return true;
}

// A plan may cut a parameter within a row.
void TouchedRows::AddTouched(const BucketSpan& span, int whole_span, Cut* cut) const {
  const auto add = [&](int64_t from, int64_t to) {
    BucketSpan part = span;
    part.parameter_offset_elements = from;
    part.bucket_offset_elements = cut->touched.elements;
    part.elements = to - from;
    cut->touched.elements += part.elements;
    cut->touched.spans.push_back(part);
    cut->whole_spans.push_back(whole_span);
  };
  const int64_t begin = span.parameter_offset_elements;
  const int64_t end = begin + span.elements;
  if (position_[span.parameter] < 0) return add(begin, end);
  const Watched& watched = watched_[position_[span.parameter]];
  const int64_t rows_end = (end + watched.row_elements - 1) / watched.row_elements;
  int64_t row = NextTouched(watched, begin / watched.row_elements, rows_end);
  while (row < rows_end) {
    int64_t after = row + 1;
    while (after < rows_end && SameRanks(watched, row, after)) ++after;
    add(std::max(begin, row * watched.row_elements), std::min(end, after * watched.row_elements));
    row = NextTouched(watched, after, rows_end);
  }
}

void TouchedRows::CutBuckets() {
  for (const Bucket& bucket : *buckets_) {
    if (cut_of_[bucket.index] < 0) continue;
    Cut& cut = cuts_[cut_of_[bucket.index]];
    cut.whole_spans.clear();
    std::vector<BucketSpan> spans = std::move(cut.touched.spans);
    spans.clear();
    cut.touched = Bucket();
    cut.touched.index = bucket.index;
    cut.touched.owner = bucket.owner;
    cut.touched.group = bucket.group;
    cut.touched.region = bucket.region;
    cut.touched.dtype = bucket.dtype;
    cut.touched.gradient_dtype = bucket.gradient_dtype;
    cut.touched.spans = std::move(spans);
    for (size_t s = 0; s < bucket.spans.size(); ++s) {
      AddTouched(bucket.spans[s], static_cast<int>(s), &cut);
    }
  }
}

}  // namespace optshard
