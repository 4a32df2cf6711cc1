#include "server/coordinator/agreement.h"

#include <utility>

#include "common/errors.h"
#include "server/coordinator/admission.h"

namespace optshard {

Agreement Agreement::After(const Agreement& former) {
  Agreement next;
  next.known_ = former.begun() ? former.agreed_ : former.known_;
  return next;
}

bool Agreement::KnowsSpecOf(const JoinRequest& request) const {
  if (!request.spec_digest.has_value()) return true;
  for (const auto& known : {agreed_, known_}) {
    if (known != nullptr && known->digest == *request.spec_digest) return true;
  }
  return false;
}

bool Agreement::HasWhatWasPrepared(const JoinRequest& request) const {
  if (!request.resumes.has_value() || !request.resumes->prepared_spec_digest.has_value()) {
    return false;
  }
  const std::shared_ptr<const First>& present = begun() ? agreed_ : known_;
  return present != nullptr && (begun() || present->grown) &&
         present->digest == *request.resumes->prepared_spec_digest;
}

JoinReply Agreement::AskForSpec(absl::Time now) {
  JoinReply reply;
  if (!begun() && now - asked_ < kSpecPatience) {
    reply.answer = JoinAnswer::kAskAgain;
    return reply;
  }
  asked_ = now;
  reply.answer = JoinAnswer::kSendSpec;
  return reply;
}

absl::Status Agreement::Agree(const JoinRequest& request) {
  if (begun() && request.spec_digest == agreed_->digest) return absl::OkStatus();
  JoinRequest whole = request;
  if (request.spec_digest.has_value()) {
    whole.spec = known_->first.spec;
    whole.spec_digest.reset();
  }
  if (begun()) return CheckAgreement(agreed_->first, whole);
  const uint64_t digest = whole.spec.Digest();
  if (request.resumes.has_value() && known_ != nullptr && known_->grown &&
      known_->digest != digest) {
    absl::Status same = errors::WithContext(CheckAgreement(known_->first, whole),
                                            "param groups were added to what the ranks go on from");
    if (!same.ok()) return same;
  }
  const bool grown = known_ != nullptr && known_->grown && known_->digest == digest;
  agreed_ = std::make_shared<const First>(First{std::move(whole), digest, grown});
  return absl::OkStatus();
}

void Agreement::Grow(OptimizerSpec spec) {
  First grown = *agreed_;
  grown.first.spec = std::move(spec);
  grown.digest = grown.first.spec.Digest();
  grown.grown = true;
  agreed_ = std::make_shared<const First>(std::move(grown));
}

void Agreement::BeginAnew() {
  if (begun()) known_ = std::move(agreed_);
  agreed_.reset();
}

}  // namespace optshard
