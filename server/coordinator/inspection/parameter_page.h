// Which parameters a page of a list has, and who is to be asked about them.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_PARAMETER_PAGE_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_PARAMETER_PAGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/inspection/job_plan.h"

namespace optshard {

struct ParameterPage {
  std::vector<int32_t> parameters;  // by number
  std::string next_page_token;      // empty: there are no more
};

struct ParameterPageRequest {
  std::string name;  // a pattern
  std::string page_token;
  std::string call;     // for errors
  int page_size = 0;    // at least 1
  int most_owners = 0;  // the page ends before a parameter with which it has more of them
  std::function<bool()> ended = [] { return false; };  // whether nobody wants it any more
};

// The parameters from the token on whose names match: page_size at most, and as many as keep the
// names under half a MiB and the owners under their number, but one at least, where there is one.
// INVALID_ARGUMENT for a foreign token or a pattern that is too long; CANCELLED once
// nobody wants it any more.
absl::StatusOr<ParameterPage> FindParameterPage(const JobPlan& plan,
                                                const ParameterPageRequest& request);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_PARAMETER_PAGE_H_
