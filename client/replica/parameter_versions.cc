#include "client/replica/parameter_versions.h"

namespace optshard {

void ParameterVersions::Add(const at::Tensor& parameter) {
  const c10::VariableVersion& version = parameter.unsafeGetTensorImpl()->version_counter();
  if (!version.enabled()) {
    are_known_ = false;
    return;
  }
  absl::MutexLock lock(&mutex_);
  versions_.push_back(version);
  own_ += version.current_version();
}

uint64_t ParameterVersions::count() const {
  absl::MutexLock lock(&mutex_);
  return Count();
}

bool ParameterVersions::are_expected() const {
  absl::MutexLock lock(&mutex_);
  return Count() != none_expected_at_;
}

void ParameterVersions::CountMove() {
  absl::MutexLock lock(&mutex_);
  ++moves_;
}

void ParameterVersions::ExpectNone() {
  absl::MutexLock lock(&mutex_);
  none_expected_at_ = Count();
}

uint64_t ParameterVersions::Raised() const {
  uint64_t raised = moves_;
  for (const c10::VariableVersion& version : versions_) raised += version.current_version();
  return raised;
}

ParameterVersions::Own::Own(ParameterVersions* versions) : versions_(*versions) {
  absl::MutexLock lock(&versions_.mutex_);
  versions_.before_own_ = versions_.Count();
  versions_.is_own_ = true;
}

ParameterVersions::Own::~Own() {
  absl::MutexLock lock(&versions_.mutex_);
  versions_.own_ = versions_.Raised() - versions_.before_own_;
  versions_.is_own_ = false;
}

}  // namespace optshard
