#include "server/shard/engine/touched_rows.h"

#include <tuple>
#include <vector>

#include "common/bucket.h"
#include "common/row_marks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A table of 100 rows of 10 elements, of which two buckets have the halves of row 50, and a bias.
class TouchedRowsTest : public ::testing::Test {
 protected:
  TouchedRowsTest() {
    GroupSpec group;
    group.parameters.resize(2);
    group.parameters[0].name = "table";
    group.parameters[0].shape = {100, 10};
    group.parameters[1].name = "bias";
    group.parameters[1].shape = {7};
    space_ = ParameterSpace({group});
    buckets_.resize(2);
    buckets_[0].spans = {{0, 0, 0, 505}};
    buckets_[0].elements = 505;
    buckets_[1].index = 1;
    buckets_[1].owner = 1;
    buckets_[1].spans = {{1, 0, 0, 7}, {0, 505, 16, 495}};
    buckets_[1].elements = 511;
  }

  // What two ranks tell each other that have these rows.
  void Take(TouchedRows& touched, const std::vector<int>& rank0, const std::vector<int>& rank1) {
    std::vector<uint64_t> all;
    for (const std::vector<int>& rows : {rank0, rank1}) {
      std::vector<uint64_t> marks(RowMarkWords(100));
      for (const int row : rows) MarkRow(marks.data(), row);
      const std::vector<ReplicaTensor> replica = {{nullptr, &gradient_, {marks.data(), 10}},
                                                  {nullptr, &gradient_, {}}};
      const std::vector<uint64_t> told = touched.MarksOf(replica);
      EXPECT_EQ(told, marks);
      all.insert(all.end(), told.begin(), told.end());
    }
    touched.Take(all);
  }

  using Span = std::tuple<int, int, int, int>;  // parameter, first element there, in bucket, count
  std::vector<Span> Spans(const TouchedRows& touched, int bucket) {
    std::vector<Span> spans;
    for (const BucketSpan& span : touched.Of(buckets_[bucket]).spans) {
      spans.emplace_back(span.parameter, span.parameter_offset_elements,
                         span.bucket_offset_elements, span.elements);
    }
    return spans;
  }

  ParameterSpace space_;
  std::vector<Bucket> buckets_;
  double gradient_ = 0;
};

TEST_F(TouchedRowsTest, Of_NothingWatched_IsTheBucket) {
  const TouchedRows touched(&space_, &buckets_, 2);
  EXPECT_FALSE(touched.watches_any());
  EXPECT_EQ(&touched.Of(buckets_[0]), &buckets_[0]);
  EXPECT_EQ(touched.WholeSpan(buckets_[1], 1), 1);
  EXPECT_TRUE(touched.Has(0, 0, 333));
}

TEST_F(TouchedRowsTest, Of_WatchedParameter_HasTheRowsOfAllRanksByWhoHasThem) {
  TouchedRows touched(&space_, &buckets_, 2);
  EXPECT_TRUE(touched.Watch({true, false}));
  EXPECT_FALSE(touched.Watch({true, false}));
  Take(touched, {3, 4, 5, 50, 99}, {5, 6, 50});
  EXPECT_THAT(Spans(touched, 0), ElementsAre(Span{0, 30, 0, 20}, Span{0, 50, 20, 10},
                                             Span{0, 60, 30, 10}, Span{0, 500, 40, 5}));
  EXPECT_EQ(touched.Of(buckets_[0]).elements, 45);
  EXPECT_THAT(Spans(touched, 1),
              ElementsAre(Span{1, 0, 0, 7}, Span{0, 505, 7, 5}, Span{0, 990, 12, 10}));
  EXPECT_EQ(touched.Of(buckets_[1]).owner, 1);
  EXPECT_EQ(touched.WholeSpan(buckets_[1], 0), 0);
  EXPECT_EQ(touched.WholeSpan(buckets_[1], 2), 1);
  EXPECT_TRUE(touched.Has(0, 0, 49));
  EXPECT_FALSE(touched.Has(1, 0, 49));
  EXPECT_TRUE(touched.Has(1, 0, 500));
  EXPECT_TRUE(touched.Has(1, 1, 3));
  Take(touched, {}, {});
  EXPECT_THAT(Spans(touched, 0), IsEmpty());
  EXPECT_EQ(touched.Of(buckets_[0]).elements, 0);
}

TEST_F(TouchedRowsTest, MarksOf_DenseAndMissingGradients_AreAllRowsAndNone) {
  TouchedRows touched(&space_, &buckets_, 2);
  touched.Watch({true, false});
  EXPECT_THAT(touched.MarksOf({{nullptr, &gradient_, {}}, {}}),
              ElementsAre(~uint64_t{0}, (uint64_t{1} << 36) - 1));
  EXPECT_THAT(touched.MarksOf({{}, {}}), ElementsAre(0, 0));
}

}  // namespace
}  // namespace optshard
