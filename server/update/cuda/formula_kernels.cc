#include "server/update/cuda/formula_kernels.h"

#include <map>

namespace optshard {
namespace {

using Kernels = std::map<absl::string_view, FormulaKernels>;

// Made by whoever comes first: the order of static initialisation is not known. Never destroyed.
Kernels& All() {
  static auto* const kernels = new Kernels;
  return *kernels;
}

}  // namespace

const FormulaKernels* FormulaKernelRegistry::Find(absl::string_view formula) {
  const auto found = All().find(formula);
  return found == All().end() ? nullptr : &found->second;
}

bool FormulaKernelRegistry::Register(const FormulaKernels& kernels) {
  All()[kernels.formula] = kernels;
  return true;
}

}  // namespace optshard
