// Updates of whole parameters by code of the trainer's own, such as an optimizer class of its
// library. Only an owner that is embedded in the trainer can run them.
#ifndef OPTSHARD_SERVER_UPDATE_TRAINER_UPDATE_H_
#define OPTSHARD_SERVER_UPDATE_TRAINER_UPDATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/update/update_rule.h"

namespace optshard {

// What there is of a rule: a name, no slots, whole parameters, and one option "lr", which the ranks
// compare. The update itself is not a rule's, and Update ends the process.
class TrainerRule final : public UpdateRule {
 public:
  explicit TrainerRule(absl::string_view name);

  const RuleSpec& spec() const override { return spec_; }
  void Update(DriverKind driver, const Coefficients& coefficients,
              const SpanUpdate& span) const override;

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override;

 private:
  RuleSpec spec_;
};

// Of one param group on one rank. It computes in memory of its own, so that an error leaves all
// replicas as they were, and keeps its state out of sight. Bound to the thread that steps, but for
// rule().
class TrainerUpdate {
 public:
  // One of a parameter's arrays may be none where that has no elements.
  struct Arrays {
    Buffer parameter;
    Buffer gradient;  // averaged over the ranks
  };

  // `name` is what the ranks compare and what inspection shows.
  explicit TrainerUpdate(absl::string_view name) : rule_(name) {}
  virtual ~TrainerUpdate() = default;

  const UpdateRule& rule() const { return rule_; }

  // Where it computes with a parameter that this rank owns: contiguous, both of the parameter's
  // dtype and number of elements, until the next call of Update. FAILED_PRECONDITION where there is
  // no such memory.
  virtual absl::StatusOr<Arrays> ArraysOf(int parameter) = 0;

  // Updates these parameters in their arrays. The group's others have no gradient in this step.
  // Called once a step on each rank that owns a parameter of the group. After an error its state
  // may be that of no step.
  virtual absl::Status Update(absl::Span<const int> parameters) = 0;

 private:
  const TrainerRule rule_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_TRAINER_UPDATE_H_
