// Converts values to the messages of proto/optshard/v1/common.proto and back. A message is not
// trusted: FromProto checks what the types do not rule out.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_COMMON_PROTO_H_
#define OPTSHARD_COMMON_MEMBERSHIP_COMMON_PROTO_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "proto/optshard/v1/common.pb.h"

namespace optshard {

// Larger numbers of steps, calls and plans are refused where they come in. So nobody has to ask
// whether the next one can be counted, and shared_progress.h has bits for all of them. A job that
// steps each millisecond takes 34 years to get there.
constexpr StepNumber kLargestStep = (StepNumber{1} << 40) - 1;
constexpr Generation kLargestGeneration = (Generation{1} << 40) - 1;

// INVALID_ARGUMENT naming the field, for a number of steps or calls beyond kLargestStep.
absl::Status CheckCount(absl::string_view field, uint64_t count);
// Likewise for a generation beyond kLargestGeneration.
absl::Status CheckGeneration(uint64_t generation);

v1::StatusProto ToProto(const absl::Status& status);
absl::Status FromProto(const v1::StatusProto& proto);

v1::StepProgress ToProto(const StepProgress& progress);
// INVALID_ARGUMENT for an unknown outcome, or for more steps or skipped calls than kLargestStep.
absl::StatusOr<StepProgress> FromProto(const v1::StepProgress& proto);

v1::GradientMode ToProto(GradientMode mode);
// INVALID_ARGUMENT for an unknown mode.
absl::StatusOr<GradientMode> FromProto(v1::GradientMode proto);

v1::PartitionPolicy ToProto(PartitionPolicy policy);
// INVALID_ARGUMENT for an unknown policy.
absl::StatusOr<PartitionPolicy> FromProto(v1::PartitionPolicy proto);

v1::ParameterSpace ToProto(const ParameterSpace& space);
// INVALID_ARGUMENT naming a parameter of unknown dtype. The space is not validated.
absl::StatusOr<ParameterSpace> FromProto(const v1::ParameterSpace& proto);

google::protobuf::RepeatedPtrField<v1::Hyperparameter> ToProto(const Hyperparameters& values);
// INVALID_ARGUMENT for one without a value, or with too many numbers.
absl::StatusOr<Hyperparameters> FromProto(
    const google::protobuf::RepeatedPtrField<v1::Hyperparameter>& proto);

v1::OptimizerSpec ToProto(const OptimizerSpec& spec);
// INVALID_ARGUMENT for an unknown policy or gradient mode, a parameter of unknown dtype or a
// hyperparameter without a value. The spec is not validated.
absl::StatusOr<OptimizerSpec> FromProto(const v1::OptimizerSpec& proto);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_COMMON_PROTO_H_
