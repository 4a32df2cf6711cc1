#include "server/shard/engine/replica_placement.h"

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

absl::Status CheckCount(const ParameterSpace& space, absl::Span<const ReplicaTensor> replica) {
  if (static_cast<int>(replica.size()) == space.parameter_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the replica has %d tensors, expected one for each of the %d parameters",
                      replica.size(), space.parameter_count()));
}

absl::Status Misplaced(const ParameterSpace& space, int parameter, const char* what,
                       ConstBuffer actual, ConstBuffer expected) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "the %s of parameter %d \"%s\" does not lie where the memory layout places it: it is at %p, "
      "expected at %p",
      what, parameter, space.parameter(parameter).name, actual.data(), expected.data()));
}

absl::Status CheckDType(const ParameterSpec& spec, int parameter, const char* what,
                        ConstBuffer array, DType expected) {
  if (!array || array.dtype() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the %s of parameter %d \"%s\" is %s, expected %s", what, parameter,
                      spec.name, NameOf(array.dtype()), NameOf(expected)));
}

}  // namespace

absl::Status CheckTensors(const ParameterSpace& space, absl::Span<const ReplicaTensor> replica) {
  absl::Status counted = CheckCount(space, replica);
  if (!counted.ok()) return counted;
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (!replica[p].parameter && space.parameter(p).elements() > 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "parameter %d \"%s\" has no memory in the replica", p, space.parameter(p).name));
    }
    if (space.parameter(p).elements() == 0) continue;
    const ParameterSpec& spec = space.parameter(p);
    absl::Status typed = CheckDType(spec, p, "memory", replica[p].parameter, spec.dtype);
    typed.Update(CheckDType(spec, p, "gradient", replica[p].gradient, spec.gradient_dtype()));
    if (!typed.ok()) return typed;
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const ParameterSpace& space, const MemoryLayout& layout,
                            absl::Span<const ReplicaRegion> regions,
                            absl::Span<const ReplicaTensor> replica) {
  absl::Status counted = CheckCount(space, replica);
  if (!counted.ok()) return counted;
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (space.parameter(p).elements() == 0) continue;
    const MemoryLayout::Place& place = layout.place(p);
    const Buffer values = regions[place.region].parameters.From(place.offset_elements);
    if (replica[p].parameter != values) {
      return Misplaced(space, p, "memory", replica[p].parameter, values);
    }
    const Buffer gradient = regions[place.region].gradients.From(place.offset_elements);
    if (replica[p].gradient && replica[p].gradient != gradient) {
      return Misplaced(space, p, "gradient", replica[p].gradient, gradient);
    }
  }
  return absl::OkStatus();
}

}  // namespace optshard
