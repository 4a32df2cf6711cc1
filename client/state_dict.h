// What an optimizer's state_dict() is, in the layout of PyTorch's.
#ifndef OPTSHARD_CLIENT_STATE_DICT_H_
#define OPTSHARD_CLIENT_STATE_DICT_H_

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace optshard {

// By name, in alphabetical order: tensors, numbers, flags, texts, tuples of numbers, None.
using StateValues = std::map<std::string, c10::IValue>;

// Parameters stand in it as keys: as numbers from 0 on over the groups in order, or as names. One
// without state is left out of `state`. Copies share the tensors. Thread-compatible value type.
template <typename Key>
struct KeyedStateDict {
  struct Group {
    StateValues options;      // "lr", "betas", ...; "param_names" where the parameters have names
    std::vector<Key> params;  // of the group's parameters, in its order
  };

  std::map<Key, StateValues> state;  // "exp_avg", "step", ...
  std::vector<Group> param_groups;
};

using StateDict = KeyedStateDict<int64_t>;
using NamedStateDict = KeyedStateDict<std::string>;

// `names` are those of an optimizer's parameters, over its groups in order. INVALID_ARGUMENT where
// the dict has a number that is none of theirs.
absl::StatusOr<NamedStateDict> KeyedByName(const StateDict& dict,
                                           const std::vector<std::string>& names);
// Likewise, with the params of each group in the optimizer's order, whatever it is in the dict.
// INVALID_ARGUMENT, naming it, for a name that is none of theirs, or that a dict has twice.
absl::StatusOr<StateDict> KeyedByIndex(const NamedStateDict& dict,
                                       const std::vector<std::string>& names);

// The dict as one value, {"state": {0: {...}}, "param_groups": [{..., "params": [0]}]}: what
// torch::pickle_save writes and PyTorch's load_state_dict takes. Shares the tensors.
c10::IValue ToIValue(const StateDict& dict);
// Likewise back, of what torch::pickle_load makes of a file of torch.save. INVALID_ARGUMENT, saying
// where, for a value that is no such dict.
absl::StatusOr<StateDict> StateDictFromIValue(const c10::IValue& value);

// A line for each value of the dict: where it stands, and a digest of what it is. Dicts with the
// same values have the same lines.
std::vector<std::string> DigestLines(const StateDict& dict);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_STATE_DICT_H_
