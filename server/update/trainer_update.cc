#include "server/update/trainer_update.h"

#include "common/fatal.h"
#include "server/update/option_spec.h"

namespace optshard {

TrainerRule::TrainerRule(absl::string_view name) {
  spec_.name = std::string(name);
  spec_.doc = "code of the trainer's own";
  spec_.element_wise = false;
  spec_.options = {options::Finite("lr", 0, "learning rate; 0 where it cannot be read")};
}

void TrainerRule::Update(DriverKind, const Coefficients&, const SpanUpdate&) const {
  Fatal("\"%s\" is code of the trainer's own and was run as a rule", spec_.name);
}

void TrainerRule::SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const {}

}  // namespace optshard
