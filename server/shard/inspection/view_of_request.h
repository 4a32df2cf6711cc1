// Finds the view that a request of the ShardOwner service means.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_VIEW_OF_REQUEST_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_VIEW_OF_REQUEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "common/incarnation.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {

// Request: a message with `optimizer` and `rank`.
template <typename Request>
ShardViewRegistry::Selector Selected(const Request& request) {
  ShardViewRegistry::Selector selector;
  selector.optimizer = request.optimizer();
  if (request.has_rank()) selector.rank = request.rank();
  return selector;
}

// Of an owner of `job`; empty: of any. Errors as ShardViewRegistry::Find, and NOT_FOUND naming both
// jobs.
template <typename Request>
absl::StatusOr<ShardViewRegistry::Use> FindView(ShardViewRegistry& views, const Request& request,
                                                const std::string& job) {
  absl::StatusOr<ShardViewRegistry::Use> view = views.Find(Selected(request));
  if (!view.ok() || job.empty()) return view;
  const MemberId member = (*view)->Describe().member;
  if (member.job == job) return view;
  return absl::NotFoundError(absl::StrFormat("rank %d of job \"%s\" is served here, not of \"%s\"",
                                             member.rank, member.job, job));
}

// The same, of the job and the incarnation that the request names, where it does. Else errors as
// FindView; ABORTED naming both incarnations.
template <typename Request>
absl::StatusOr<ShardViewRegistry::Use> FindMember(ShardViewRegistry& views,
                                                  const Request& request) {
  absl::StatusOr<ShardViewRegistry::Use> view = FindView(views, request, request.job());
  if (!view.ok() || request.incarnation() == 0) return view;
  const MemberId member = (*view)->Describe().member;
  if (member.incarnation == request.incarnation()) return view;
  return absl::AbortedError(
      absl::StrFormat("rank %d is of incarnation %s here, not of %s; ask again", member.rank,
                      IncarnationText(member.incarnation), IncarnationText(request.incarnation())));
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_VIEW_OF_REQUEST_H_
