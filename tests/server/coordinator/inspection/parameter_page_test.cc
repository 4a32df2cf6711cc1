#include "server/coordinator/inspection/parameter_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<const JobPlan> PlanOf(std::vector<ParameterSpec> parameters, int world_size,
                                      PartitionPolicy policy) {
  OptimizerPlan plan;
  plan.spec.world_size = world_size;
  plan.spec.policy = policy;
  plan.spec.space = ParameterSpace({GroupSpec{std::move(parameters)}});
  plan.spec.rules = {{"adam"}};
  const std::vector<std::string> nodes(world_size, "node");
  auto ready = std::make_shared<PlanReady>();
  ready->plan = MakePlan(1, plan.spec.space, policy, nodes).value();
  plan.ready = ready;
  return MakeJobPlan(std::move(plan));
}

std::vector<ParameterSpec> Named(int count, const std::string& prefix) {
  std::vector<ParameterSpec> parameters(count);
  for (int i = 0; i < count; ++i) {
    parameters[i].name = absl::StrCat(prefix, i, i % 2 == 0 ? ".weight" : ".bias");
    parameters[i].shape = {4096};
  }
  return parameters;
}

ParameterPageRequest Request(const std::string& name, int page_size,
                             const std::string& token = "") {
  ParameterPageRequest request;
  request.name = name;
  request.page_token = token;
  request.call = "ListParameters";
  request.page_size = page_size;
  request.most_owners = 100;
  return request;
}

TEST(FindParameterPage, NameMatches_GivesThoseInPages) {
  const auto plan = PlanOf(Named(10, "h."), 2, PartitionPolicy::kGreedy);
  auto page = FindParameterPage(*plan, Request("*.bias", 3));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(page->parameters, ElementsAre(1, 3, 5));
  page = FindParameterPage(*plan, Request("*.bias", 3, page->next_page_token));
  EXPECT_THAT(page->parameters, ElementsAre(7, 9));
  EXPECT_EQ(page->next_page_token, "");
  page = FindParameterPage(*plan, Request("*.bias", 3, "8"));
  EXPECT_THAT(page->parameters, ElementsAre(9));
  page = FindParameterPage(*plan, Request("none", 3));
  EXPECT_THAT(page->parameters, IsEmpty());
  EXPECT_EQ(page->next_page_token, "");
}

TEST(FindParameterPage, PageThatIsFullAtTheEnd_IsTheLast) {
  const auto plan = PlanOf(Named(4, "h."), 2, PartitionPolicy::kGreedy);
  EXPECT_EQ(FindParameterPage(*plan, Request("", 4))->next_page_token, "");
  EXPECT_EQ(FindParameterPage(*plan, Request("", 3))->next_page_token, "3");
}

TEST(FindParameterPage, LongNames_EndThePageBefore) {
  const auto plan = PlanOf(Named(3000, std::string(1000, 'x')), 1, PartitionPolicy::kGreedy);
  const auto page = FindParameterPage(*plan, Request("", 3000));
  EXPECT_GT(page->parameters.size(), 400);
  EXPECT_LT(page->parameters.size(), 525);
}

TEST(FindParameterPage, ManyOwners_EndThePageButNotBeforeTheFirst) {
  // Each parameter is four blocks, so that each is owned by four ranks.
  const auto plan = PlanOf(Named(4, "h."), 16, PartitionPolicy::kBalanced);
  ParameterPageRequest request = Request("", 10);
  request.most_owners = 8;
  EXPECT_THAT(FindParameterPage(*plan, request)->parameters, ElementsAre(0, 1));
  request.most_owners = 1;
  EXPECT_THAT(FindParameterPage(*plan, request)->parameters, ElementsAre(0));
}

TEST(FindParameterPage, NobodyWantsIt_IsGivenUp) {
  const auto plan = PlanOf(Named(1000, "h."), 2, PartitionPolicy::kGreedy);
  ParameterPageRequest request = Request("none", 10);
  int looks = 0;
  request.ended = [&looks] { return ++looks == 2; };
  EXPECT_EQ(FindParameterPage(*plan, request).status().code(), absl::StatusCode::kCancelled);
}

TEST(FindParameterPage, BadRequest_IsRefused) {
  const auto plan = PlanOf(Named(4, "h."), 2, PartitionPolicy::kGreedy);
  for (const char* token : {"x", "-1", "4", "01", "9223372036854775807"}) {
    const auto page = FindParameterPage(*plan, Request("", 10, token));
    EXPECT_EQ(page.status().code(), absl::StatusCode::kInvalidArgument) << token;
  }
  EXPECT_EQ(FindParameterPage(*plan, Request(std::string(1025, '*'), 10)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MakeJobPlan, Shares_AreTheRanks) {
  std::vector<ParameterSpec> parameters = Named(3, "h.");
  parameters[2].dtype = DType::kBFloat16;
  const auto plan = PlanOf(parameters, 2, PartitionPolicy::kGreedy);
  EXPECT_EQ(plan->shares[0].parameters + plan->shares[1].parameters, 3);
  EXPECT_EQ(plan->shares[0].elements, 2 * 4096);
  EXPECT_EQ(plan->shares[0].bytes, 4096 * 4 + 4096 * 2);
  EXPECT_EQ(plan->shares[1].bytes, 4096 * 4);
  ASSERT_EQ(plan->owners[1].size(), 1);
  EXPECT_EQ(plan->owners[1][0].rank, 1);
  const auto all = PlanOf(Named(3, "h."), 2, PartitionPolicy::kReplicated);
  EXPECT_EQ(all->shares[1].parameters, 3);
  ASSERT_EQ(all->owners[2].size(), 1);
  EXPECT_EQ(all->owners[2][0].rank, 0);
}

}  // namespace
}  // namespace optshard
