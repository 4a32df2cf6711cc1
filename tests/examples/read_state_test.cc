// The example that reads a job's state, against a shard server whose trainers have stepped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/command.h"
#include "tests/testing/local_coordinator.h"
#include "tests/testing/served_job.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::Command;
using ::testing::HasSubstr;
using testing::NodeRig;
using testing::NodeTrainer;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Its output; the exit code in `code`.
std::string ReadState(const std::string& coordinator, int* code) {
  Command command({Command::Runfile("examples/optshard-read-state"),
                   absl::StrCat("--coordinator=", coordinator)});
  *code = command.Wait(absl::Now() + kPatience).value_or(-1);
  return command.output();
}

TEST(ReadStateExample, OfAJob_ShowsEverySlotAfterOneStep) {
  LocalCoordinator coordinator(2);
  ShardViewRegistry views;
  const testing::ServedJob served(&coordinator, &views);
  NodeRig::Options options;
  options.owners.coordinator = &coordinator;
  options.owners.coordinator_address = served.coordinator_address();
  options.owners.views = &views;
  options.owners.owner_address = served.owner_address();
  NodeRig rig(std::move(options));
  const std::vector<std::unique_ptr<NodeTrainer>> trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { EXPECT_EQ(trainers[rank]->StepUntil(3), absl::OkStatus()); });
  int code = -1;
  const std::string output = ReadState(served.coordinator_address(), &code);
  EXPECT_EQ(code, 0) << output;
  const std::string name = trainers[0]->space().parameter(0).name;
  EXPECT_THAT(output, AllOf(HasSubstr("the state of step 3, generation 1: "),
                            HasSubstr("\ngroup 0: adam amsgrad=false betas=[0.9, 0.999] "),
                            HasSubstr(absl::StrCat(name, " exp_avg ")),
                            HasSubstr(" step float64 [], norm 3\n")));
}

TEST(ReadStateExample, NobodyAtTheAddress_EndsWithAnErrorNamingIt) {
  int code = -1;
  EXPECT_THAT(ReadState("127.0.0.1:1", &code), HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(code, 1);
}

}  // namespace
}  // namespace optshard
