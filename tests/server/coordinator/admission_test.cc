#include "server/coordinator/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "common/gradient_mode.h"
#include "common/membership/membership.h"
#include "server/coordinator/agreement.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return status.ToString(); }

TEST(CheckJoinRequest, GoodRequest_IsOk) {
  EXPECT_TRUE(CheckJoinRequest(TestJoin(1, 2), "optshard", 2).ok());
}

TEST(CheckJoinRequest, RankOutOfRange_IsInvalidAndShowsRange) {
  for (Rank rank : {-1, 2}) {
    const absl::Status status = CheckJoinRequest(TestJoin(rank, 2), "optshard", 2);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(Text(status), AllOf(HasSubstr(absl::StrCat("rank ", rank)), HasSubstr("0..1")));
  }
}

TEST(CheckJoinRequest, OtherWorldSize_ShowsBoth) {
  const absl::Status status = CheckJoinRequest(TestJoin(1, 3), "optshard", 2);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Text(status), AllOf(HasSubstr("world size is 3"), HasSubstr("coordinator 2")));
}

TEST(CheckJoinRequest, OtherJob_ShowsBoth) {
  const absl::Status status = CheckJoinRequest(TestJoin(1, 2), "other", 2);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Text(status), AllOf(HasSubstr("\"optshard\""), HasSubstr("\"other\"")));
}

TEST(CheckJoinRequest, OtherProtocol_IsFailedPrecondition) {
  JoinRequest request = TestJoin(1, 2);
  for (const uint32_t version : {kProtocolVersion - 1, kProtocolVersion + 1}) {
    request.protocol_version = version;
    const absl::Status status = CheckJoinRequest(request, "optshard", 2);
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(Text(status),
                AllOf(HasSubstr(absl::StrCat("speaks protocol version ", version, ",")),
                      HasSubstr(absl::StrCat("this coordinator version ", kProtocolVersion, ";"))));
  }
}

TEST(CheckJoinRequest, EmptyNames_AreInvalid) {
  JoinRequest request = TestJoin(1, 2, "");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckJoinRequest(request, "optshard", 2)));
  request = TestJoin(1, 2);
  request.spec.rules[0].name = "";
  EXPECT_TRUE(absl::IsInvalidArgument(CheckJoinRequest(request, "optshard", 2)));
}

TEST(CheckJoinRequest, TooLongTexts_AreInvalidAndNotRepeated) {
  const struct {
    const char* what;
    void (*lengthen)(JoinRequest&, const std::string&);
  } texts[] = {
      {"the job's name", [](JoinRequest& r, const std::string& text) { r.job = text; }},
      {"the optimizer's name", [](JoinRequest& r, const std::string& text) { r.optimizer = text; }},
      {"the request id", [](JoinRequest& r, const std::string& text) { r.request_id = text; }},
      {"the node's name", [](JoinRequest& r, const std::string& text) { r.node = text; }},
      {"the owner's address",
       [](JoinRequest& r, const std::string& text) { r.owner_address = text; }},
  };
  for (const auto& text : texts) {
    JoinRequest request = TestJoin(1, 2);
    text.lengthen(request, std::string(1000000, 'x'));
    const absl::Status status = CheckJoinRequest(request, "optshard", 2);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text.what;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 1"), HasSubstr(text.what),
                                    HasSubstr("1000000 bytes, expected at most 256")));
    EXPECT_LT(status.message().size(), 1000u);
  }
}

TEST(CheckJoinRequest, BeyondALimit_IsInvalid) {
  JoinRequest request = TestJoin(1, 2);
  request.spec.space = ParameterSpace(std::vector<GroupSpec>(20000));
  request.spec.rules.resize(20000);
  const absl::Status status = CheckJoinRequest(request, "optshard", 2);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr("param groups is 20000"));
}

TEST(CheckJoinRequest, BadSpace_IsInvalidAndNamesRankAndParameter) {
  JoinRequest request = TestJoin(1, 2);
  ParameterSpec twice;
  twice.name = "fc.weight";
  twice.shape = {1};
  request.spec.space = ParameterSpace({GroupSpec{{twice, twice}}});
  const absl::Status status = CheckJoinRequest(request, "optshard", 2);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 1 (pid"), HasSubstr("\"fc.weight\"")));
}

TEST(CheckAgreement, EqualRequests_AreOk) {
  EXPECT_TRUE(CheckAgreement(TestJoin(0, 2), TestJoin(1, 2)).ok());
}

// What differs, and what the error must show of both sides.
struct Difference {
  const char* name;
  void (*change)(JoinRequest&);
  const char* first;
  const char* other;
};

class CheckAgreementOn : public ::testing::TestWithParam<Difference> {};

TEST_P(CheckAgreementOn, Difference_ShowsBothSidesAndRanks) {
  JoinRequest other = TestJoin(1, 2);
  GetParam().change(other);
  const absl::Status status = CheckAgreement(TestJoin(0, 2), other);
  EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
  EXPECT_THAT(errors::RanksOf(status), ElementsAre(1));
  EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"),
                                  HasSubstr(GetParam().first), HasSubstr(GetParam().other)));
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckAgreementOn,
    ::testing::Values(
        Difference{"Rule", [](JoinRequest& r) { r.spec.rules[0].name = "sgd"; }, "\"adam\"",
                   "\"sgd\""},
        Difference{"GradientMode",
                   [](JoinRequest& r) { r.spec.gradient_mode = GradientMode::kAveraged; },
                   "\"reduce\"", "\"averaged\""},
        Difference{"Policy", [](JoinRequest& r) { r.spec.policy = PartitionPolicy::kBalanced; },
                   "\"greedy\"", "\"balanced\""},
        Difference{"Buckets", [](JoinRequest& r) { r.spec.buckets.max_bytes = 1024; },
                   "max_bytes=4194304", "max_bytes=1024"},
        Difference{"PackBelow", [](JoinRequest& r) { r.spec.buckets.pack_below_bytes = 7; },
                   "pack_below_bytes=262144", "pack_below_bytes=7"},
        Difference{"Space", [](JoinRequest& r) { r.spec.space = TestSpace(5); }, "[4, 8]",
                   "[5, 8]"}),
    [](const auto& info) { return info.param.name; });

TEST(Agreement, SpecThatIsNotKnown_IsAskedOfOneRankAtATime) {
  Agreement agreement;
  const JoinRequest short_form = WithoutSpec(TestJoin(1, 2));
  EXPECT_FALSE(agreement.KnowsSpecOf(short_form));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(agreement.AskForSpec(start).answer, JoinAnswer::kSendSpec);
  EXPECT_EQ(agreement.AskForSpec(start).answer, JoinAnswer::kAskAgain);
  // The one that was asked has not come.
  const absl::Time later = start + Agreement::kSpecPatience;
  EXPECT_EQ(agreement.AskForSpec(later).answer, JoinAnswer::kSendSpec);
  EXPECT_EQ(agreement.AskForSpec(later).answer, JoinAnswer::kAskAgain);

  EXPECT_TRUE(agreement.KnowsSpecOf(TestJoin(0, 2)));
  EXPECT_TRUE(agreement.Agree(TestJoin(0, 2)).ok());
  EXPECT_TRUE(agreement.KnowsSpecOf(short_form));
  EXPECT_TRUE(agreement.Agree(short_form).ok());
}

TEST(Agreement, AnotherSpec_IsAskedOfEverybodyAndItsDifferenceNamed) {
  Agreement agreement;
  ASSERT_TRUE(agreement.Agree(TestJoin(0, 2)).ok());
  JoinRequest other = TestJoin(1, 2);
  other.spec.space = TestSpace(5);
  EXPECT_FALSE(agreement.KnowsSpecOf(WithoutSpec(other)));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(agreement.AskForSpec(absl::UnixEpoch()).answer, JoinAnswer::kSendSpec);
  }
  const absl::Status status = agreement.Agree(other);
  EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
  EXPECT_THAT(Text(status), AllOf(HasSubstr("[4, 8]"), HasSubstr("[5, 8]")));
}

TEST(Agreement, AfterAnotherGroup_TheSpecIsKnownButAnotherOneMayCome) {
  Agreement former;
  ASSERT_TRUE(former.Agree(TestJoin(0, 2)).ok());
  const JoinRequest short_form = WithoutSpec(TestJoin(1, 2));
  Agreement next = Agreement::After(Agreement::After(former));
  EXPECT_FALSE(next.begun());
  ASSERT_TRUE(next.KnowsSpecOf(short_form));
  ASSERT_TRUE(next.Agree(short_form).ok());
  EXPECT_EQ(next.spec().Digest(), *short_form.spec_digest);

  JoinRequest other = TestJoin(0, 2);
  other.spec.space = TestSpace(5);
  next = Agreement::After(former);
  ASSERT_TRUE(next.Agree(other).ok());
  // Known, but not what the others have.
  EXPECT_TRUE(errors::IsRanksDisagree(next.Agree(short_form)));
  next.BeginAnew();
  EXPECT_FALSE(next.begun());
  EXPECT_TRUE(next.KnowsSpecOf(WithoutSpec(other)));
}

}  // namespace
}  // namespace optshard
