#include "server/coordinator/status_page_rpc.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/membership/job_status_rpc.h"
#include "common/page_token.h"

namespace optshard {
namespace {

constexpr char kGetStatus[] = "GetStatus";
constexpr int kUsualPage = 100;
constexpr int kLargestPage = 1000;
constexpr size_t kPageBytes = 1 << 20;

bool IsWanted(const MemberStatus& member, const v1::GetStatusRequest& request) {
  if (member.rank < request.first_rank()) return false;
  if (request.ranks() > 0 && member.rank - request.first_rank() >= request.ranks()) return false;
  const auto state = static_cast<v1::MemberState>(member.state);
  return request.states().empty() || std::find(request.states().begin(), request.states().end(),
                                               state) != request.states().end();
}

v1::GroupStatus WithoutMembers(const GroupStatus& group) {
  GroupStatus bare = group;
  bare.members.clear();
  v1::GroupStatus proto = ToProto(bare);
  proto.set_summary(Summary(group));
  return proto;
}

}  // namespace

absl::StatusOr<v1::JobStatus> StatusPage(const JobStatus& status,
                                         const v1::GetStatusRequest& request) {
  const absl::StatusOr<int> page_size = PageSize(request.page_size(), kUsualPage, kLargestPage);
  if (!page_size.ok()) return page_size.status();
  if (request.first_rank() < 0 || request.ranks() < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("first_rank is %d, ranks is %d: neither may be negative",
                        request.first_rank(), request.ranks()));
  }
  // Counts the members of all groups, whether or not they are wanted.
  const absl::StatusOr<int64_t> first = ParsePageToken(request.page_token(), kGetStatus);
  if (!first.ok()) return first.status();
  v1::JobStatus page;
  page.set_summary(Summary(status));
  page.set_job(status.job);
  int64_t position = 0;
  int members = 0;
  size_t bytes = 0;
  for (const GroupStatus& group : status.groups) {
    v1::GroupStatus& proto = *page.add_groups();
    proto = WithoutMembers(group);
    for (const MemberStatus& member : group.members) {
      const int64_t at = position++;
      if (at < *first || !page.next_page_token().empty() || !IsWanted(member, request)) continue;
      if (members == *page_size || bytes > kPageBytes) {
        page.set_next_page_token(PageToken(at));
        continue;
      }
      v1::MemberStatus& listed = *proto.add_members();
      listed = ToProto(member);
      bytes += listed.ByteSizeLong();
      ++members;
    }
  }
  if (*first > 0 && *first >= position) return ForeignPageToken(request.page_token(), kGetStatus);
  return page;
}

}  // namespace optshard
