#include "server/coordinator/inspection/job_view.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

std::string Known(const std::vector<std::string>& names) {
  if (names.empty()) return "nobody has joined yet";
  return absl::StrCat("it has: \"", absl::StrJoin(names, "\", \""), "\"");
}

// The name of the one that is meant.
absl::StatusOr<std::string> Choose(absl::string_view job, const std::vector<std::string>& names,
                                   absl::string_view asked) {
  if (asked.empty() && names.size() == 1) return names[0];
  if (asked.empty() && !names.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("job \"", job,
                                                   "\" has several optimizers; set `optimizer` "
                                                   "to one of them; ",
                                                   Known(names)));
  }
  for (const std::string& name : names) {
    if (name == asked) return name;
  }
  if (asked.empty()) return absl::NotFoundError(absl::StrCat("job \"", job, "\": ", Known(names)));
  return absl::NotFoundError(
      absl::StrCat("job \"", job, "\" has no optimizer of that name; ", Known(names)));
}

}  // namespace

absl::StatusOr<JobView> OpenJobView(const Coordinator& coordinator, JobPlans& plans,
                                    absl::string_view optimizer, bool needs_plan) {
  JobView view;
  view.job = coordinator.options().job;
  const absl::StatusOr<std::string> name =
      Choose(view.job, coordinator.OptimizerNames(), optimizer);
  if (!name.ok()) return name.status();
  JobStatus status = coordinator.GetStatus(*name);
  view.status = std::move(status.groups.at(0));
  absl::StatusOr<std::shared_ptr<const JobPlan>> plan = plans.Get(*name, view.status.generation);
  if (plan.ok()) {
    view.plan = *std::move(plan);
  } else if (needs_plan) {
    return plan.status();
  }
  return view;
}

}  // namespace optshard
