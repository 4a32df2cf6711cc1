// Options of a rule and of the optimizer of torch::optim that does the same.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_TORCH_ORACLE_CASES_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_TORCH_ORACLE_CASES_H_

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "common/hyperparameters.h"

namespace optshard {

using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<torch::Tensor>&)>;

struct OracleCase {
  std::string name;
  std::string rule;
  Hyperparameters given;
  OptimizerFactory torch_optimizer;
  double parameter_scale = 1;
  double gradient_scale = 1;
};

inline void PrintTo(const OracleCase& oracle, std::ostream* out) {
  *out << oracle.rule << " " << oracle.given.ToString();
}

std::vector<OracleCase> AdamCases();
std::vector<OracleCase> AdamWCases();
std::vector<OracleCase> AdagradCases();
std::vector<OracleCase> RmspropCases();
std::vector<OracleCase> SgdCases();

}  // namespace optshard

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_TORCH_ORACLE_CASES_H_
