// That the table of all rules (tests/testing/rule_table.h), which other tests compare the bits of,
// would show a difference.
#include "tests/testing/rule_table.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/testing/client_ranks.h"
#include "tests/testing/recorded_job.h"

namespace optshard::testing {
namespace {

std::vector<TrainedTensor> TrainOneRank(const RecordedJob& job) {
  std::vector<TrainedTensor> trained;
  ExpectAllOk(
      RunRanks(1, [&](const ShardedOptimizerOptions& options) { trained = Train(job, options); }));
  return trained;
}

TEST(RuleTableTest, Train_EveryFormOfState_ChangesParametersAndSlotsOfEveryGroup) {
  for (const NamedState& state : TableStates()) {
    SCOPED_TRACE(state.name);
    for (const RuleKind kind : {RuleKind::kElementWise, RuleKind::kWholeParameters}) {
      RecordedJob job = TableJob(kind, state);
      ASSERT_FALSE(job.groups.empty());
      const std::vector<TrainedTensor> after = TrainOneRank(job);
      job.steps = 0;
      const std::vector<TrainedTensor> before = TrainOneRank(job);
      ASSERT_EQ(before.size(), after.size());
      std::map<std::string, int> changed;  // tensors, by group and slot
      for (size_t i = 0; i < before.size(); ++i) {
        const std::string& name = before[i].name;
        EXPECT_EQ(name, after[i].name);
        changed[name.substr(0, name.find(", ")) + name.substr(name.rfind(", "))] +=
            before[i].bytes != after[i].bytes ? 1 : 0;
      }
      for (const auto& [what, tensors] : changed) EXPECT_GT(tensors, 0) << what;
    }
  }
}

TEST(TrainedTensorsTest, Difference_EveryKind_IsNamed) {
  const TrainedTensor whole = {"a, exp_avg", 0, DType::kFloat16, std::string("\1\0\2\0\3\0", 6)};
  TrainedTensor head = whole;
  head.bytes.resize(4);
  TrainedTensor tail = {whole.name, 2, whole.dtype, whole.bytes.substr(4)};
  EXPECT_EQ(Difference({whole}, {{head}, {tail}}), "");
  EXPECT_EQ(Difference({whole}, {{head}, {}}), "a, exp_avg: only 4 of 6 bytes are on any rank");
  EXPECT_EQ(Difference({}, {{}, {tail}}),
            "a, exp_avg, rank 1: the unsharded run has no such tensor");
  TrainedTensor beyond = tail;
  beyond.first = 3;
  EXPECT_EQ(Difference({whole}, {{beyond}}),
            "a, exp_avg, rank 0: is float16, elements 3 to 4; the unsharded run has float16, 3");
  tail.bytes[1] = '\x40';
  EXPECT_EQ(Difference({whole}, {{head}, {tail}}),
            "a, exp_avg, rank 1: element 2: expected 0003, got 4003");
  // Any NaN equals any NaN.
  const TrainedTensor one = {"a", 0, DType::kFloat16, "\1\x7c"};
  EXPECT_EQ(Difference({one}, {{{"a", 0, DType::kFloat16, "\2\xfe"}}}), "");
  EXPECT_NE(Difference({one}, {{{"a", 0, DType::kFloat16, std::string("\0\x7c", 2)}}}), "");
}

}  // namespace
}  // namespace optshard::testing
