#include "server/coordinator/inspection/parameter_page.h"

#include <set>

#include "common/name_glob.h"
#include "common/page_token.h"

namespace optshard {
namespace {

constexpr size_t kMostNameBytes = 512 << 10;
constexpr int64_t kParametersBetweenLooks = 256;  // a pattern takes up to a millisecond a name

}  // namespace

absl::StatusOr<ParameterPage> FindParameterPage(const JobPlan& plan,
                                                const ParameterPageRequest& request) {
  const absl::Status valid = CheckGlob("name", request.name);
  if (!valid.ok()) return valid;
  const absl::StatusOr<int64_t> first = ParsePageToken(request.page_token, request.call);
  if (!first.ok()) return first.status();
  const int64_t count = plan.space().parameter_count();
  if (*first > 0 && *first >= count) return ForeignPageToken(request.page_token, request.call);
  ParameterPage page;
  size_t name_bytes = 0;
  std::set<Rank> owners;
  for (int64_t p = *first; p < count; ++p) {
    if (p % kParametersBetweenLooks == 0 && request.ended()) {
      return absl::CancelledError("the client has gone");
    }
    const auto parameter = static_cast<int32_t>(p);
    const std::string& name = plan.space().parameter(parameter).name;
    if (!MatchesGlob(name, request.name)) continue;
    name_bytes += name.size();
    for (const JobPlan::OwnerSlice& owner : plan.owners[parameter]) owners.insert(owner.rank);
    const bool too_much = page.parameters.size() == static_cast<size_t>(request.page_size) ||
                          name_bytes > kMostNameBytes ||
                          owners.size() > static_cast<size_t>(request.most_owners);
    if (too_much && !page.parameters.empty()) {
      page.next_page_token = PageToken(p);
      break;
    }
    page.parameters.push_back(parameter);
  }
  return page;
}

}  // namespace optshard
