// What rules' files say of kernels that are more than one formula.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_RULES_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_RULES_H_

#include <string_view>
#include <vector>

namespace optshard {

// Rules that take a direction for each parameter, and a step along it whose size follows from the
// norms of both: LAMB. Two formulas, with norms between them.
struct NormScaledRule {
  const char* rule = nullptr;       // RuleSpec::name
  const char* direction = nullptr;  // the formula that writes the direction as if it were a slot
  const char* step = nullptr;       // and the one that has it for its gradient
  int direction_slot = 0;
  int lr = 0;               // coefficients of the first formula: MinusNormScaledLr's
  int is_scaled = 0;        // (server/update/norm_ratio.h)
  int minus_step_size = 0;  // of the second one: its result
};

// Rules that scale a gradient by averages of its squares, of which a matrix keeps those of its rows
// and of its columns: Adafactor. All formulas have the same coefficients.
struct FactoredRule {
  const char* rule = nullptr;
  const char* vector = nullptr;    // has the update for its parameter, and a slot
  const char* gradient = nullptr;  // of a matrix: likewise, without a slot
  const char* average = nullptr;   // from the means of the squares to the averages, and a slot
  const char* matrix = nullptr;    // divides the update by the estimate of the variance
  const char* step = nullptr;      // has the update for its gradient
  int row_slot = 0;
  int column_slot = 0;
  int vector_slot = 0;
  int first_eps = 0;        // coefficients: least mean of the averages of rows
  int rho = 0;              // MinusRelativeStep's (server/update/norm_ratio.h)
  int second_eps = 0;       // likewise
  int clip = 0;             // likewise
  int minus_step_size = 0;  // its result
};

// Rules that make the direction of a matrix orthogonal, by products of matrices, and step along it:
// Muon. Two formulas, with the products between them.
struct OrthogonalRule {
  const char* rule = nullptr;
  const char* direction = nullptr;  // the formula that writes the direction as if it were a slot
  const char* step = nullptr;       // and the one that has the orthogonal one for its gradient
  int direction_slot = 0;
  int a = 0;  // coefficients of the first formula: what NewtonSchulz has of those names
  int b = 0;  // (server/update/matrix/newton_schulz.h)
  int c = 0;
  int steps = 0;
  int eps = 0;
  int lr = 0;       // likewise: MinusShapeScaledLr's (server/update/norm_ratio.h), of which
  int lr_rest = 0;  // lr is the sum of two
  int matches_adamw = 0;
  int kept = 0;          // likewise: what the second formula has for the next one
  int kept_of_step = 0;  // coefficients of the second formula
  int minus_step_size = 0;
};

// Those whose kernels are linked in.
template <class Rule>
class KernelRules {
 public:
  // Null where there is none of that name.
  static const Rule* Find(std::string_view rule) {
    for (const Rule& each : Registered()) {
      if (each.rule == rule) return &each;
    }
    return nullptr;
  }
  // At static initialisation; returns true.
  static bool Register(const Rule& rule) {
    Registered().push_back(rule);
    return true;
  }

 private:
  static std::vector<Rule>& Registered() {
    static auto& rules = *new std::vector<Rule>;
    return rules;
  }
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_RULES_H_
