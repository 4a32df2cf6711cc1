#include "server/coordinator/inspection/unanswered_rpc.h"

#include "absl/strings/str_cat.h"
#include "common/membership/common_proto.h"
#include "common/utf8_prefix.h"

namespace optshard {
namespace {

constexpr size_t kMostErrorBytes = 500;

}  // namespace

v1::UnansweredOwner Unanswered(const OwnerToAsk& owner, const absl::Status& error) {
  const absl::Status cut(error.code(), Utf8Prefix(error.message(), kMostErrorBytes));
  v1::UnansweredOwner unanswered;
  unanswered.set_summary(absl::StrCat("rank ", owner.rank, " at ",
                                      owner.address.empty() ? "no address" : owner.address,
                                      " has not answered: ", cut.ToString()));
  unanswered.set_rank(owner.rank);
  unanswered.set_address(owner.address);
  *unanswered.mutable_error() = ToProto(cut);
  return unanswered;
}

}  // namespace optshard
