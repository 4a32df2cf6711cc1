#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/coordinator/status_page_rpc.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Optimizers "a" and "b"; every fifth rank is lost.
JobStatus Job(int world_size) {
  JobStatus job;
  job.job = "job";
  for (const char* optimizer : {"a", "b"}) {
    GroupStatus group;
    group.optimizer = optimizer;
    group.state = GroupState::kActive;
    group.world_size = world_size;
    for (Rank rank = 0; rank < world_size; ++rank) {
      MemberStatus member;
      member.rank = rank;
      member.state = rank % 5 == 4 ? MemberState::kLost : MemberState::kActive;
      member.node = std::string(200, 'n');
      member.owner_address = std::string(200, 'a');
      group.members.push_back(member);
    }
    job.groups.push_back(group);
  }
  return job;
}

std::vector<Rank> RanksOf(const v1::GroupStatus& group) {
  std::vector<Rank> ranks;
  for (const v1::MemberStatus& member : group.members()) ranks.push_back(member.rank());
  return ranks;
}

TEST(StatusPage, SmallJob_IsOnePage) {
  const auto page = StatusPage(Job(3), v1::GetStatusRequest());
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->groups_size(), 2);
  EXPECT_THAT(RanksOf(page->groups(0)), ElementsAre(0, 1, 2));
  EXPECT_THAT(RanksOf(page->groups(1)), ElementsAre(0, 1, 2));
  EXPECT_EQ(page->next_page_token(), "");
}

TEST(StatusPage, TenThousandRanks_ComeInSmallPages) {
  const JobStatus job = Job(10'000);
  v1::GetStatusRequest request;
  request.set_page_size(100'000);
  std::vector<int> seen(2);
  do {
    const auto page = StatusPage(job, request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LT(page->ByteSizeLong(), 2u << 20);
    for (int g = 0; g < 2; ++g) {
      EXPECT_EQ(page->groups(g).summary(), Summary(job.groups[g]));
      for (const Rank rank : RanksOf(page->groups(g))) ASSERT_EQ(rank, seen[g]++);
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(seen, ElementsAre(10'000, 10'000));
}

TEST(StatusPage, Filters_AreBothMet) {
  v1::GetStatusRequest request;
  request.add_states(v1::MEMBER_STATE_LOST);
  request.add_states(v1::MEMBER_STATE_MISSING);
  request.set_first_rank(5);
  request.set_ranks(10);
  request.set_page_size(3);
  auto page = StatusPage(Job(30), request);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(RanksOf(page->groups(0)), ElementsAre(9, 14));
  EXPECT_THAT(RanksOf(page->groups(1)), ElementsAre(9));
  request.set_page_token(page->next_page_token());
  page = StatusPage(Job(30), request);
  EXPECT_EQ(page->groups(0).members_size(), 0);
  EXPECT_THAT(RanksOf(page->groups(1)), ElementsAre(14));
  EXPECT_EQ(page->next_page_token(), "");
}

TEST(StatusPage, BadRequest_IsRefused) {
  v1::GetStatusRequest request;
  for (const char* token : {"x", "-1", "01", "6", "9223372036854775807"}) {
    request.set_page_token(token);
    const absl::Status refused = StatusPage(Job(3), request).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << token;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("GetStatus"));
  }
  request.clear_page_token();
  request.set_first_rank(-1);
  EXPECT_EQ(StatusPage(Job(3), request).status().code(), absl::StatusCode::kInvalidArgument);
  request.set_first_rank(INT32_MAX);
  request.set_ranks(INT32_MAX);
  EXPECT_EQ(StatusPage(Job(3), request)->groups(0).members_size(), 0);
}

}  // namespace
}  // namespace optshard
