#include "common/membership/common_proto.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/errors.h"
#include "common/group_rule.h"
#include "common/request_limits.h"

namespace optshard {

absl::Status CheckCount(absl::string_view field, uint64_t count) {
  if (count <= kLargestStep) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", count, ", expected at most ", kLargestStep));
}

absl::Status CheckGeneration(uint64_t generation) {
  if (generation <= kLargestGeneration) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("generation is ", generation, ", expected at most ", kLargestGeneration));
}

v1::StatusProto ToProto(const absl::Status& status) {
  v1::StatusProto proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(std::string(status.message()));
  proto.set_payload(errors::EncodePayload(status));
  return proto;
}

absl::Status FromProto(const v1::StatusProto& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  errors::AttachPayload(status, proto.payload());
  return status;
}

// The enums' values are ours (membership.h, gradient_mode.h, partition.h, dtype.h say that they are
// stable).

v1::StepProgress ToProto(const StepProgress& progress) {
  v1::StepProgress proto;
  proto.set_finished_step(progress.finished);
  proto.set_outcome(static_cast<v1::StepOutcome>(progress.outcome));
  proto.set_skipped_calls(progress.skipped);
  return proto;
}

absl::StatusOr<StepProgress> FromProto(const v1::StepProgress& proto) {
  if (!v1::StepOutcome_IsValid(proto.outcome()) ||
      proto.outcome() == v1::STEP_OUTCOME_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown step outcome ", static_cast<int>(proto.outcome())));
  }
  absl::Status counts = CheckCount("finished_step", proto.finished_step());
  counts.Update(CheckCount("skipped_calls", proto.skipped_calls()));
  if (!counts.ok()) return counts;
  StepProgress progress;
  progress.finished = proto.finished_step();
  progress.outcome = static_cast<StepOutcome>(proto.outcome());
  progress.skipped = proto.skipped_calls();
  return progress;
}

v1::GradientMode ToProto(GradientMode mode) { return static_cast<v1::GradientMode>(mode); }

absl::StatusOr<GradientMode> FromProto(v1::GradientMode proto) {
  if (!v1::GradientMode_IsValid(proto) || proto == v1::GRADIENT_MODE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown gradient mode ", static_cast<int>(proto)));
  }
  return static_cast<GradientMode>(proto);
}

v1::PartitionPolicy ToProto(PartitionPolicy policy) {
  return static_cast<v1::PartitionPolicy>(policy);
}

absl::StatusOr<PartitionPolicy> FromProto(v1::PartitionPolicy proto) {
  if (!v1::PartitionPolicy_IsValid(proto) || proto == v1::PARTITION_POLICY_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown partition policy ", static_cast<int>(proto)));
  }
  return static_cast<PartitionPolicy>(proto);
}

v1::ParameterSpace ToProto(const ParameterSpace& space) {
  v1::ParameterSpace proto;
  for (const GroupSpec& group : space.groups()) {
    v1::ParameterGroup* group_proto = proto.add_groups();
    group_proto->set_admission(group.admission);
    for (const GroupSpec::Addition& addition : group.additions) {
      v1::ParameterGroup::Addition* addition_proto = group_proto->add_additions();
      addition_proto->set_first(addition.first);
      addition_proto->set_admission(addition.admission);
    }
    for (const ParameterSpec& parameter : group.parameters) {
      v1::ParameterSpec* parameter_proto = group_proto->add_parameters();
      parameter_proto->set_name(parameter.name);
      for (int64_t extent : parameter.shape) parameter_proto->add_shape(extent);
      parameter_proto->set_dtype(static_cast<v1::DType>(parameter.dtype));
      parameter_proto->set_device(parameter.device);
      parameter_proto->set_update_cost(parameter.update_cost);
      parameter_proto->set_main_gradient(parameter.main_gradient);
    }
  }
  return proto;
}

absl::StatusOr<ParameterSpace> FromProto(const v1::ParameterSpace& proto) {
  // Before anything as large is made of it.
  int64_t parameters = 0;
  int64_t additions = 0;
  for (const v1::ParameterGroup& group : proto.groups()) {
    parameters += group.parameters_size();
    additions += group.additions_size();
  }
  absl::Status count = CheckCount("the number of param groups", proto.groups_size(), kMaxGroups);
  count.Update(CheckCount("the number of parameters", parameters, kMaxParameters));
  count.Update(CheckCount("the number of additions to param groups", additions, kMaxGroups));
  if (!count.ok()) return count;
  std::vector<GroupSpec> groups;
  groups.reserve(proto.groups_size());
  for (const v1::ParameterGroup& group_proto : proto.groups()) {
    GroupSpec& group = groups.emplace_back();
    group.admission = group_proto.admission();
    for (const v1::ParameterGroup::Addition& addition : group_proto.additions()) {
      group.additions.push_back({addition.first(), addition.admission()});
    }
    group.parameters.reserve(group_proto.parameters_size());
    for (const v1::ParameterSpec& parameter_proto : group_proto.parameters()) {
      if (!v1::DType_IsValid(parameter_proto.dtype()) ||
          parameter_proto.dtype() == v1::DTYPE_UNSPECIFIED) {
        return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter_proto.name(),
                                                       "\" has the unknown dtype ",
                                                       static_cast<int>(parameter_proto.dtype())));
      }
      ParameterSpec& parameter = group.parameters.emplace_back();
      parameter.name = parameter_proto.name();
      parameter.shape.assign(parameter_proto.shape().begin(), parameter_proto.shape().end());
      parameter.dtype = static_cast<DType>(parameter_proto.dtype());
      parameter.device = parameter_proto.device();
      parameter.update_cost = parameter_proto.update_cost();
      parameter.main_gradient = parameter_proto.main_gradient();
    }
  }
  return ParameterSpace(std::move(groups));
}

google::protobuf::RepeatedPtrField<v1::Hyperparameter> ToProto(const Hyperparameters& values) {
  google::protobuf::RepeatedPtrField<v1::Hyperparameter> proto;
  for (const auto& [name, value] : values.values()) {
    v1::Hyperparameter& one = *proto.Add();
    one.set_name(name);
    if (const bool* flag = absl::get_if<bool>(&value)) {
      one.set_flag(*flag);
    } else if (const double* number = absl::get_if<double>(&value)) {
      one.set_number(*number);
    } else if (const std::string* choice = absl::get_if<std::string>(&value)) {
      one.set_choice(*choice);
    } else {
      const Numbers& numbers = absl::get<Numbers>(value);
      one.mutable_numbers()->mutable_values()->Add(numbers.begin(), numbers.end());
    }
  }
  return proto;
}

absl::StatusOr<Hyperparameters> FromProto(
    const google::protobuf::RepeatedPtrField<v1::Hyperparameter>& proto) {
  Hyperparameters values;
  for (const v1::Hyperparameter& one : proto) {
    switch (one.value_case()) {
      case v1::Hyperparameter::kFlag:
        values.Set(one.name(), one.flag());
        break;
      case v1::Hyperparameter::kNumber:
        values.Set(one.name(), one.number());
        break;
      case v1::Hyperparameter::kNumbers: {
        const auto& numbers = one.numbers().values();
        const absl::Status count = CheckCount(
            absl::StrCat("the number of numbers of the hyperparameter \"", one.name(), "\""),
            numbers.size(), kMaxNumbers);
        if (!count.ok()) return count;
        values.Set(one.name(), Numbers(absl::MakeConstSpan(numbers.data(), numbers.size())));
        break;
      }
      case v1::Hyperparameter::kChoice:
        values.Set(one.name(), one.choice());
        break;
      case v1::Hyperparameter::VALUE_NOT_SET:
        return absl::InvalidArgumentError(
            absl::StrCat("the hyperparameter \"", one.name(), "\" has no value of a known kind"));
    }
  }
  return values;
}

v1::OptimizerSpec ToProto(const OptimizerSpec& spec) {
  v1::OptimizerSpec proto;
  proto.set_world_size(spec.world_size);
  *proto.mutable_space() = ToProto(spec.space);
  for (const GroupRule& rule : spec.rules) {
    v1::GroupRule& one = *proto.add_rules();
    one.set_name(rule.name);
    *one.mutable_hyperparameters() = ToProto(rule.hyperparameters);
  }
  proto.set_gradient_mode(ToProto(spec.gradient_mode));
  proto.set_policy(ToProto(spec.policy));
  proto.set_bucket_max_bytes(spec.buckets.max_bytes);
  proto.set_bucket_pack_below_bytes(spec.buckets.pack_below_bytes);
  proto.set_share_parameters(spec.share_parameters);
  proto.set_master_weights(spec.state.master_weights);
  proto.set_master_weight_bits(spec.state.master_weight_bits);
  proto.set_state_dtype(static_cast<v1::StateFormat>(spec.state.format));
  proto.set_publish_dtype(static_cast<v1::DType>(spec.state.publish_dtype));
  return proto;
}

absl::StatusOr<OptimizerSpec> FromProto(const v1::OptimizerSpec& proto) {
  absl::StatusOr<ParameterSpace> space = FromProto(proto.space());
  if (!space.ok()) return space.status();
  const absl::StatusOr<GradientMode> gradient_mode = FromProto(proto.gradient_mode());
  if (!gradient_mode.ok()) return gradient_mode.status();
  const absl::StatusOr<PartitionPolicy> policy = FromProto(proto.policy());
  if (!policy.ok()) return policy.status();
  const absl::Status count =
      CheckCount("the number of update rules", proto.rules_size(), kMaxGroups);
  if (!count.ok()) return count;
  OptimizerSpec spec;
  spec.world_size = proto.world_size();
  spec.space = *std::move(space);
  for (const v1::GroupRule& rule_proto : proto.rules()) {
    absl::StatusOr<Hyperparameters> values = FromProto(rule_proto.hyperparameters());
    if (!values.ok()) return values.status();
    spec.rules.push_back({rule_proto.name(), *std::move(values)});
  }
  spec.gradient_mode = *gradient_mode;
  spec.policy = *policy;
  spec.buckets.max_bytes = proto.bucket_max_bytes();
  spec.buckets.pack_below_bytes = proto.bucket_pack_below_bytes();
  spec.share_parameters = proto.share_parameters();
  spec.state.master_weights = proto.master_weights();
  spec.state.master_weight_bits = proto.master_weight_bits();
  if (!v1::StateFormat_IsValid(proto.state_dtype()) ||
      proto.state_dtype() == v1::STATE_FORMAT_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unknown state_dtype ", static_cast<int>(proto.state_dtype())));
  }
  spec.state.format = static_cast<StateFormat>(proto.state_dtype());
  if (!v1::DType_IsValid(proto.publish_dtype()) || proto.publish_dtype() == v1::DTYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unknown publish_dtype ", static_cast<int>(proto.publish_dtype())));
  }
  spec.state.publish_dtype = static_cast<DType>(proto.publish_dtype());
  return spec;
}

}  // namespace optshard
