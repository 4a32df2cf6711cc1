#include "tests/server/update/replica_data.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/dataplane/tree_average.h"

namespace optshard::testing {

ReplicaData::ReplicaData(const RuleCase& rule_case, const ReplicaShape& shape, uint32_t seed)
    : rule_(rule_case.rule), shape_(shape), seed_(seed) {
  const size_t count = std::accumulate(shape.group_sizes.begin(), shape.group_sizes.end(), 0);
  owner_ = seed % count;
  for (size_t replica = 0; replica < count; ++replica) {
    replicas_.emplace_back(replica == owner_ ? &rule_case : nullptr, shape.elements,
                           shape.misalignment, /*specials=*/true,
                           seed + static_cast<uint32_t>(replica));
  }
}

bool ReplicaData::Missing(size_t replica) const {
  const size_t distance = (replica + replicas_.size() - seed_ / 7 % replicas_.size());
  return static_cast<int>(distance % replicas_.size()) < shape_.missing;
}

SpanUpdate ReplicaData::Span() {
  SpanUpdate span = replicas_[owner_].Span();
  gradients_.clear();
  copies_.clear();
  for (size_t replica = 0; replica < replicas_.size(); ++replica) {
    const SpanUpdate own = replicas_[replica].Span();
    gradients_.push_back(Missing(replica) ? nullptr : own.gradient.data());
    if (replica != owner_) copies_.push_back(own.parameter.data());
  }
  if (!shape_.averaged) {
    span.gradient = nullptr;
    span.replicas.gradients = gradients_;
    span.replicas.group_sizes = shape_.group_sizes;
  }
  if (shape_.copies) span.replicas.copies = absl::MakeSpan(copies_);
  return span;
}

std::vector<float> ReplicaData::Average() {
  const std::vector<float> zeros(shape_.elements, 0.0f);
  std::vector<const void*> contributions;
  for (size_t replica = 0; replica < replicas_.size(); ++replica) {
    contributions.push_back(Missing(replica) ? zeros.data()
                                             : replicas_[replica].Span().gradient.data());
  }
  std::vector<float> average(shape_.elements);
  AverageOfGroups(shape_.group_sizes, DType::kFloat32, contributions, 0, shape_.elements,
                  average.data());
  return average;
}

void ReplicaData::UpdateByParts(const Coefficients& coefficients) {
  SpanUpdate span = replicas_[owner_].Span();
  const std::vector<float> average = Average();
  if (!shape_.averaged) span.gradient = average.data();
  rule_->Update(DriverKind::kScalar, coefficients, span);
  for (size_t replica = 0; shape_.copies && replica < replicas_.size(); ++replica) {
    if (replica != owner_) {
      std::copy_n(span.parameter.As<float>(), shape_.elements,
                  replicas_[replica].Span().parameter.As<float>());
    }
  }
}

std::string ReplicaData::DifferenceTo(const ReplicaData& expected) const {
  for (size_t replica = 0; replica < replicas_.size(); ++replica) {
    const std::string difference = replicas_[replica].DifferenceTo(expected.replicas_[replica]);
    if (!difference.empty()) {
      return absl::StrCat("replica ", replica, replica == owner_ ? " (the owner): " : ": ",
                          difference);
    }
  }
  return "";
}

}  // namespace optshard::testing
