// What an optimizer is made of, as its constructor was given it.
#ifndef OPTSHARD_CLIENT_OWNER_PREPARED_OPTIMIZER_H_
#define OPTSHARD_CLIENT_OWNER_PREPARED_OPTIMIZER_H_

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "client/owner/optimizer_parts.h"
#include "client/owner/optimizer_spec_of.h"
#include "client/replica/parameter_list.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer_options.h"
#include "client/status_error.h"
#include "common/optimizer_spec.h"

namespace optshard {

// What must be known before the base class can be constructed. Errors are thrown as StatusError;
// what they are, client/sharded_optimizer.h says.
struct PreparedOptimizer {
  PreparedOptimizer(std::vector<torch::optim::OptimizerParamGroup> given, const RuleOptions& rule,
                    ShardedOptimizerOptions client_options)
      : groups(std::move(given)),
        options(ValueOrThrow(WithKnownRank(std::move(client_options)))),
        defaults(SayingWhere("rank", options.rank, [&] { return rule.Complete(); })) {
    SayingWhere("rank", options.rank, [&] {
      for (size_t g = 0; g < groups.size(); ++g) {
        groups[g].set_options(std::make_unique<RuleOptions>(
            SayingWhere("param group", g, [&] { return RuleOptions::OfGroup(groups[g], rule); })));
      }
      list = ValueOrThrow(MakeParameterList(TensorsOf(groups), options.parameter_names));
      if (options.main_gradients) ThrowIfError(UseMainGradients(list));
    });
    for (torch::optim::OptimizerParamGroup& group : groups) group.params().clear();
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      groups[list.space.group_of(static_cast<int>(i))].params().push_back(list.tensors[i]);
    }
    spec = SayingWhere("rank", options.rank,
                       [&] { return OptimizerSpecOf(options, list.space, groups); });
    list.space = spec.space;
  }

  std::vector<torch::optim::OptimizerParamGroup> groups;  // all options set, each parameter once
  ShardedOptimizerOptions options;
  RuleOptions defaults;
  ParameterList list;
  OptimizerSpec spec;
  bool replaces = false;  // a broken optimizer of this process, which has made room
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_PREPARED_OPTIMIZER_H_
