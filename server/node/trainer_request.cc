#include "server/node/trainer_request.h"

#include <utility>

#include "absl/status/statusor.h"
#include "common/hyperparameter_bytes.h"
#include "common/parameter_space.h"
#include "common/row_marks.h"
#include "server/update/step_hyperparameters.h"

namespace optshard {
namespace {

constexpr double kNoElements = 0;  // aligned for every dtype

}  // namespace

void TrainerRequest::Place(const MemoryLayout& layout, std::vector<ReplicaRegion> regions) {
  regions_ = std::move(regions);
  all_tensors_.clear();
  for (int p = 0; p < spec_.space.parameter_count(); ++p) {
    const MemoryLayout::Place& place = layout.place(p);
    ReplicaTensor tensor;
    tensor.gradient = &kNoElements;
    if (spec_.space.parameter(p).elements() > 0) {
      tensor.parameter = regions_[place.region].parameters.From(place.offset_elements);
      tensor.gradient = regions_[place.region].gradients.From(place.offset_elements);
    }
    all_tensors_.push_back(tensor);
  }
  tensors_ = all_tensors_;
}

std::shared_ptr<ParameterMemory> TrainerRequest::ParametersKeptBy(
    std::shared_ptr<const void> keeps) const {
  auto memory = std::make_shared<ParameterMemory>();
  for (const ReplicaTensor& tensor : all_tensors_) memory->values.emplace_back(tensor.parameter);
  memory->keeps.push_back(std::move(keeps));
  return memory;
}

absl::Status TrainerRequest::Take(Incarnation trainer, Doorbell& doorbell) {
  if (std::exchange(trainer_, trainer) != trainer) {
    // Versions of hyperparameters are each trainer's own.
    asked_ = DoorbellRequest();
    hyperparameter_version_ = 0;
  }
  return doorbell.Take(&asked_);
}

absl::Status TrainerRequest::UseHyperparameters() {
  if (asked_.hyperparameter_version == hyperparameter_version_ && hyperparameter_version_ != 0) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<Hyperparameters>> given =
      DecodeHyperparameters(asked_.hyperparameters);
  if (!given.ok()) return given.status();
  const absl::StatusOr<std::vector<Hyperparameters>> usable = ValidateForStep(groups_, *given);
  if (!usable.ok()) return usable.status();
  hyperparameters_ = *std::move(given);
  hyperparameter_version_ = asked_.hyperparameter_version;
  return absl::OkStatus();
}

StepInput TrainerRequest::Input() {
  for (size_t p = 0; p < tensors_.size(); ++p) {
    tensors_[p].gradient = asked_.has_gradient[p] ? all_tensors_[p].gradient : nullptr;
    tensors_[p].gradient_rows = GradientRows();
    if (asked_.row_marks[p] == nullptr) continue;
    const ParameterSpec& parameter = spec_.space.parameter(static_cast<int>(p));
    tensors_[p].gradient_rows = {asked_.row_marks[p], parameter.elements() / RowsOf(parameter)};
  }
  StepInput input;
  input.replica = tensors_;
  input.regions = regions_;
  input.hyperparameters = hyperparameters_;
  input.timeout = asked_.timeout;
  return input;
}

}  // namespace optshard
